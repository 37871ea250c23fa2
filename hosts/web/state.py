"""The state that the page shows at one moment, as one JSON document. Laptop's side, pure.

Every value is a text or a number. The page inserts values only as text, so a host's text never becomes markup.
"""

from __future__ import annotations

from typing import Any

from hosts.console.fleet import disk_left, event_line, fleet_line, gpu_use, heard, trend
from hosts.console.text import printable
from hosts.series.view import FleetView, HostView
from hosts.units import duration

MOST_EVENTS = 12
TREND_POINTS = 48
"""Points of a host's trend, each as 0 to 100 % of the highest point. The state of 200 hosts takes about 80 KB."""


def state(view: FleetView) -> dict[str, Any]:
    """Return the fleet's line, a row for each host, and the newest events."""
    return {
        "line": fleet_line(view),
        "lost": view.lost,
        "over": view.is_over,
        "hosts": [_row(host, view.at) for host in view.hosts],
        "events": [event_line(name, event) for name, event in view.events(MOST_EVENTS)],
    }


def _row(host: HostView, now: float) -> dict[str, Any]:
    return {
        "name": printable(host.name),
        "state": printable(host.word),
        "lost": host.is_lost,
        "records": f"{host.done:,} / {host.assigned:,}" if host.assigned else "",
        "share": host.done / host.assigned if host.assigned else None,
        "rate": f"{host.rate:,.0f}" if host.rate else "",
        "trend": [round(100 * share) for share in trend([rate for _, rate in host.rates], TREND_POINTS)],
        "gpu": gpu_use(host),
        "disk": disk_left(host),
        "left": duration(host.left_seconds) if host.left_seconds else "",
        "dollars": "" if host.bill.spent is None else f"${host.bill.spent:,.2f}",
        "heard": heard(host, now),
        "trouble": printable(host.trouble),
    }
