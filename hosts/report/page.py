"""Makes the report's page: a single HTML file, whose Content-Security-Policy forbids any use of the network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from bokeh.embed import components
from bokeh.resources import Resources
from jinja2 import Environment, StrictUndefined

from hosts.commands.report import HostRecord
from hosts.console.text import moment, printable
from hosts.money import dollars
from hosts.plan.plan import Plan
from hosts.report import plots
from hosts.report.verdict import bill_of, causes, known_dollars, totals, verdict, worked_seconds
from hosts.units import duration, size
from remote.shared.messages.history import Point


@dataclass(frozen=True)
class Section:
    """A heading and its plots."""

    title: str
    plots: list[str]
    note: str = ""


def page(run: str, records: Sequence[HostRecord], plan: Plan | None, typed: Sequence[tuple[float, str]]) -> str:
    """Return the report as HTML; `typed` are the commands that made the run and the page, with their times."""
    drawn = _drawn(records)
    found = [plot for _, several, _ in drawn for plot in several]
    script, places = components(found) if found else ("", ())
    rest = iter(places)
    sections = [Section(title, [next(rest) for _ in several], note) for title, several, note in drawn if several]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["printable"] = printable
    template = environment.from_string(files("hosts.report").joinpath("page.html.jinja").read_text())
    counts = totals(records)
    return template.render(
        run=run,
        made=moment(time.time()),
        verdict=verdict(records, plan.records if plan else None),
        facts=_facts(records),
        causes=causes(records),
        hosts=[_row(record) for record in records],
        problems=[(record.host, record.problem) for record in records if record.problem],
        events=_events(records),
        sections=sections,
        accounts=[(record.host, record.account) for record in records if record.account is not None],
        commands=[f"{moment(at)}  {words}" for at, words in typed],
        plan=plan,
        counts=counts,
        bokeh=Resources(mode="inline", components=["bokeh"]).js_raw[0],
        script=script,
    )


def _drawn(records: Sequence[HostRecord]) -> list[tuple[str, list[Any], str]]:
    """Return titles with their plots, without plots that have no data."""
    accounts = [(record.host, record.account) for record in records if record.account is not None]
    slots = [
        (f"boundary {account.boundaries[at] if at < len(account.boundaries) else at}", norm)
        for _, account in accounts[:1]
        for at, norm in enumerate(account.norms)
    ]
    of_first = f"The norms are from the host {accounts[0][0]} only." if len(accounts) > 1 else ""
    more = len(records) - plots.MOST_LINES
    left_out = f"{more} more hosts have no line in the plots. The tables list all hosts." if more > 0 else ""
    over = [
        plots.over_time(records, "Throughput", "tokens/s", lambda point: point.values.get("tokens_per_second")),
        plots.over_time(records, "Records done", "records", lambda point: point.values.get("done")),
    ]
    gpu = [
        plots.over_time(records, "GPU use, mean", "%", lambda point: _mean(point, "use")),
        plots.over_time(records, "GPU power, sum", "W", lambda point: _sum(point, "watts")),
        plots.over_time(records, "GPU temperature, highest", "°C", lambda point: _most(point, "celsius")),
    ]
    room = [
        plots.over_time(records, "Free on the shards' disk", "GiB", lambda point: _gib(point, "disk_free")),
        plots.over_time(records, "Dumps in the RAM disk", "GiB", lambda point: _gib(point, "dump_bytes")),
    ]
    shapes = [
        plots.histogram("Lengths", "tokens", [(host, account.lengths) for host, account in accounts]),
        plots.histogram("Mean norm, by slot", "norm", slots),
        plots.histogram(
            "Parity: difference from the server's logprobs",
            "relative to the effect of rounding (the limit is 1)",
            [(host, account.parity_excess) for host, account in accounts],
        ),
    ]
    return [
        ("What happened", _there([plots.timeline(records)]), ""),
        ("Speed", _there(over), left_out),
        ("Where time went", _there([plots.where_time_went(records)]), ""),
        ("GPUs", _there(gpu), ""),
        ("Room", _there(room), ""),
        ("The records", _there(shapes), of_first if slots else ""),
    ]


def _there(found: Sequence[Any | None]) -> list[Any]:
    return [plot for plot in found if plot is not None]


def _facts(records: Sequence[HostRecord]) -> list[tuple[str, str]]:
    """Return the numbers of the summary."""
    counts, accounts = totals(records), [record.account for record in records if record.account is not None]
    first = min((one.first_at for one in accounts if one.first_at), default=0.0)
    last = max((one.last_at for one in accounts), default=0.0)
    worked = [seconds for record in records if (seconds := worked_seconds(record))]
    compared = sum(one.parity_checked for one in accounts)
    passed = sum(1 for one in accounts for _ in one.canaries)
    return [
        ("records", f"{counts.done + counts.freed:,} done, {counts.quarantined:,} quarantined"),
        ("tokens", f"{counts.tokens_done:,}"),
        ("states", size(counts.bytes_done)),
        ("time", f"{moment(first)} to {moment(last)}" if first else "no record is finished"),
        ("at work", f"{duration(sum(worked))} of all hosts together" if worked else "not recorded"),
        ("rate", f"{counts.tokens_done / sum(worked):,.0f} tokens/s a host" if worked else "not recorded"),
        ("parity", f"{compared:,} records agreed with the server's logprobs" if compared else "NOT ONE was compared"),
        ("canaries", f"{passed} servers captured their canary correctly" if passed else "no canary is recorded"),
        ("dollars", known_dollars(records)),
    ]  # fmt: skip


def _row(record: HostRecord) -> dict[str, str]:
    """Return a host's row of the table."""
    account = record.account
    if account is None:
        return {
            "host": record.host,
            "state": "lost",
            "records": "",
            "tokens": "",
            "rate": "",
            "left": "",
            "dollars": "",
        }
    counts, worked = account.counts, worked_seconds(record)
    spent = bill_of(record).spent
    return {
        "host": record.host,
        "state": account.status,
        "records": f"{counts.done + counts.freed:,} of {counts.assigned:,}",
        "tokens": f"{counts.tokens_done:,}",
        "rate": f"{counts.tokens_done / worked:,.0f}" if worked else "",
        "left": f"{counts.quarantined:,}",
        "dollars": dollars(spent) if spent is not None else "",
    }


def _events(records: Sequence[HostRecord]) -> list[tuple[str, str, str, str, str]]:
    found = [(record.host, event) for record in records for event in record.events]
    found.sort(key=lambda one: one[1].at)
    return [(moment(event.at), host, event.subject, event.kind, event.text) for host, event in found]


def _readings(point: Point, name: str) -> list[float]:
    return [value for key, value in point.values.items() if key.startswith("gpu") and key.endswith(f".{name}")]


def _mean(point: Point, name: str) -> float | None:
    found = _readings(point, name)
    return sum(found) / len(found) if found else None


def _sum(point: Point, name: str) -> float | None:
    found = _readings(point, name)
    return sum(found) if found else None


def _most(point: Point, name: str) -> float | None:
    return max(_readings(point, name), default=None)


def _gib(point: Point, name: str) -> float | None:
    value = point.values.get(name)
    return None if value is None else value / (1 << 30)
