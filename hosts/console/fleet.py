"""Formats the fleet as text for `inv watch`: cells for the screen, and lines for a pipe."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hosts.console.text import printable
from hosts.money import said
from hosts.series.view import FleetView, HostView
from hosts.units import duration, size
from remote.shared.messages.history import Event

_BARS = "▁▂▃▄▅▆▇█"
WIDE_COLUMNS = 130
"""From this width on, all columns are shown, and the last column takes the remaining width."""
PADDING = 2
"""Blank columns of the terminal beside each cell."""


@dataclass(frozen=True)
class Column:
    """A column of the table of hosts."""

    title: str
    width: int
    wide: bool = False
    """Whether the column is shown only on wide terminals."""


COLUMNS = (
    Column("host", 10),
    Column("state", 11),
    Column("records", 14),
    Column("tok/s", 7),
    Column("trend", 8),
    Column("GPU", 4),
    Column("disk", 9),
    Column("left", 11, wide=True),
    Column("dollars", 9, wide=True),
    Column("heard", 10, wide=True),
    Column("last error", 0, wide=True),
)


def columns(width: int) -> list[Column]:
    """Return the columns for a terminal of this width."""
    if width < WIDE_COLUMNS:
        return [column for column in COLUMNS if not column.wide]
    taken = sum(column.width + PADDING for column in COLUMNS)
    return [*COLUMNS[:-1], Column(COLUMNS[-1].title, width - taken, wide=True)]


def row(host: HostView, now: float, width: int) -> list[str]:
    """Return a host's cells for `columns(width)`."""
    cells = {
        "host": host.name,
        "state": host.word,
        "records": f"{host.done:,}/{host.assigned:,}" if host.assigned else "",
        "tok/s": f"{host.rate:,.0f}" if host.rate else "",
        "trend": sparkline([rate for _, rate in host.rates], 8),
        "GPU": gpu_use(host),
        "disk": disk_left(host),
        "left": "" if not host.left_seconds else duration(host.left_seconds),
        "dollars": "" if host.bill.spent is None else f"${host.bill.spent:,.2f}",
        "heard": heard(host, now),
        "last error": host.trouble,
    }
    return [printable(cells[column.title]) for column in columns(width)]


def fleet_line(view: FleetView) -> str:
    """Return `run kimi-1: 1,204 of 90,000 records, 51,234 tokens/s, 3 h 12 min left, $12.40 so far; lost: gpu2`."""
    runs = ", ".join(view.runs)
    parts = [f"{view.done:,} of {view.assigned:,} records"] if view.assigned else ["no run is known"]
    if view.rate:
        parts.append(f"{view.rate:,.0f} tokens/s")
    if view.left_seconds is not None and view.assigned:
        parts.append(f"{duration(view.left_seconds)} left" if view.left_seconds else "nothing left to do")
    if money := said(view.bill):
        parts.append(money)
    line = ", ".join(parts)
    if runs:
        line = f"{'runs' if len(view.runs) > 1 else 'run'} {runs}: {line}"
    return printable(line + (f"; lost: {', '.join(view.lost)}" if view.lost else ""))


def host_line(host: HostView, now: float) -> str:
    """Return one host as one line."""
    parts = [host.word]
    if host.assigned:
        parts.append(f"{host.done:,}/{host.assigned:,} records")
    if host.rate:
        parts.append(f"{host.rate:,.0f} tokens/s")
    if host.left_seconds:
        parts.append(f"{duration(host.left_seconds)} left")
    if use := gpu_use(host):
        parts.append(f"GPU {use}")
    if disk := disk_left(host):
        parts.append(f"{disk} of disk left")
    if host.is_lost and host.heard_at:
        parts.append(f"heard {heard(host, now)} ago")
    if host.trouble:
        parts.append(host.trouble)
    return printable(f"{host.name}: {', '.join(parts)}")


def event_line(host: str, event: Event) -> str:
    """Return `08:12:03 gpu1: run kimi-1: paused: It begins no further record …`, with the laptop's time."""
    try:
        moment = time.strftime("%H:%M:%S", time.localtime(event.at))
    except (OverflowError, ValueError, OSError):
        moment = "--:--:--"
    return printable(f"{moment} {host}: {event.subject}: {event.kind}: {event.text}")


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last values as bars between 0 and the highest value."""
    return "".join(_BARS[round((len(_BARS) - 1) * share)] for share in trend(values, width))


def trend(values: Sequence[float], most: int) -> list[float]:
    """Return at most `most` means of neighbouring values, each as a share of the highest, 0 to 1."""
    parts = min(most, len(values))
    means = [_mean(values[len(values) * at // parts : len(values) * (at + 1) // parts]) for at in range(parts)]
    top = max(means, default=0.0)
    return [mean / top if top > 0 else 0.0 for mean in means]


def gpu_use(host: HostView) -> str:
    """Return the mean use of the host's GPUs, `97%`; "" if it is unknown."""
    if host.glance is None or host.is_lost:
        return ""
    uses = [gpu.use_percent for gpu in host.glance.reading.gpus if gpu.use_percent is not None]
    return f"{_mean(uses):.0f}%" if uses else ""


def disk_left(host: HostView) -> str:
    """Return the free space on the shards' disk; "" if it is unknown."""
    free = [run.disk_free_bytes for run in host.runs]
    return size(min(free)) if free else ""


def heard(host: HostView, now: float) -> str:
    """Return the age of the host's last message."""
    return duration(max(0.0, now - host.heard_at)) if host.heard_at else "never"


def document(view: FleetView) -> dict[str, Any]:
    """Return one view for `--json`."""
    return {
        "at": view.at,
        "runs": view.runs,
        "records_done": view.done,
        "records": view.assigned,
        "tokens_per_second": view.rate,
        "left_seconds": view.left_seconds,
        "dollars": _bill(view),
        "hosts": {host.name: _host(host) for host in view.hosts},
    }


def _host(host: HostView) -> dict[str, Any]:
    return {
        "word": host.word,
        "lost": None if host.error is None else {"message": host.error.message, "since": host.lost_at},
        "heard_at": host.heard_at,
        "records_done": host.done,
        "records": host.assigned,
        "tokens_per_second": host.rate,
        "left_seconds": host.left_seconds,
        "dollars": _bill(host),
        "glance": None if host.glance is None else host.glance.model_dump(mode="json", exclude={"recent"}),
    }


def _bill(of: FleetView | HostView) -> dict[str, float | None]:
    found = of.bill
    return {
        "spent": found.spent,
        "to_come": found.to_come,
        "per_million_tokens": found.per_million_tokens,
        "per_terabyte": found.per_terabyte,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
