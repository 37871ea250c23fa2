"""Output about datasets and plans: dropped records, lengths, each host's share, records with their loss mask."""

from __future__ import annotations

from rich.markup import escape
from rich.text import Text

from hosts.commands.plan import Planned
from hosts.commands.prepare import Inspected
from hosts.console.output import Output
from hosts.console.text import printable
from hosts.money import said
from hosts.plan.capacity import Forecast
from hosts.units import duration, size
from remote.shared.messages.dataset import InspectedRecord, Manifest, PrepareResult
from remote.shared.words import counted

_BAR = 40
_MOST_NAMES = 8
"""The most names in one line."""
MASKED_STYLE = "bold green"
PLAIN_STYLE = "dim"


def show_prepared(output: Output, result: PrepareResult) -> None:
    """Print the manifest in a few lines, the dropped records and the length distribution."""
    manifest = result.manifest
    verb = "found again" if result.reused else f"made in {duration(result.wall_seconds)}"
    output.line(f"{result.out}: {counted(manifest.records, 'record')}, {manifest.tokens:,} tokens, {verb}")
    output.line(_loss_line(manifest))
    show_drops(output, manifest)
    show_unread(output, manifest)
    show_histogram(output, result.histogram)


def _loss_line(manifest: Manifest) -> str:
    share = manifest.loss_tokens / manifest.tokens
    methods = {"generation": "the template's generation blocks", "marker": "markers", "given": "given masks"}
    by = ", ".join(f"{count:,} by {methods[method]}" for method, count in manifest.mask.items())
    cut = f"; {counted(manifest.truncated, 'record')} cut to {manifest.max_len:,} tokens" if manifest.truncated else ""
    return f"loss on {share:.0%} of the tokens ({by}); digest {manifest.digest}{cut}"


def show_drops(output: Output, manifest: Manifest) -> None:
    """Print how many records were dropped for each reason."""
    rows = [(drop.records, drop.tokens, drop.reason, ", ".join(drop.examples)) for drop in manifest.drops]
    if rows:
        output.table(("dropped", "tokens", "reason", "for example"), rows)


def show_unread(output: Output, manifest: Manifest) -> None:
    """Print the files and the message keys that were not read."""
    if manifest.unread_files:
        names = manifest.unread_files
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        output.note(f"not read: {', '.join(printable(name) for name in names[:_MOST_NAMES])}{more}")
    rows = [(count, *printable(key).split(".", 1)) for key, count in manifest.unread_keys.items()]
    if rows:
        output.table(("messages", "of", "key that the chat template does not read"), rows)


def show_histogram(output: Output, histogram: list[tuple[int, int, int]]) -> None:
    """Print the length distribution, one bar for each power of two."""
    most = max((count for *_, count in histogram), default=0)
    rows = [
        (f"{low:,} to {high - 1:,}", count, "█" * round(_BAR * count / most) or ("▏" if count else ""))
        for low, high, count in histogram
    ]
    output.table(("tokens", "records", ""), rows)


def show_inspected(output: Output, found: Inspected) -> None:
    """Print every record, or, if none was asked for, the dropped records."""
    for record in found.records:
        show_record(output, record)
    if not found.records:
        show_drops(output, found.manifest)
        show_unread(output, found.manifest)


def show_record(output: Output, record: InspectedRecord) -> None:
    """Print one record; tokens that count for the loss are green, or in brackets without colours."""
    if output.as_json:
        return
    output.out.print(
        f"[bold]record {record.index}[/bold] from {escape(printable(record.origin))}: {record.tokens:,} tokens, "
        f"loss on {record.loss_tokens:,}" + (f"; {escape(printable(record.note))}" if record.note else "")
    )
    text = Text()
    for piece in record.pieces:
        shown = "\n".join(printable(line) for line in piece.text.split("\n"))
        if not output.out.is_terminal and piece.masked:
            shown = f"⟦{shown}⟧"
        text.append(shown, style=MASKED_STYLE if piece.masked else PLAIN_STYLE)
    output.out.print(text)


def show_plan(output: Output, planned: Planned) -> None:
    """Print one line for each host, then when the run ends, or why the plan does not fit and what would help."""
    output.table(("host", "records", "tokens", "on disk", "room", "RAM disk", "time"), _plan_rows(planned.forecasts))
    if not planned.fits:
        for one in planned.forecasts:
            for problem in one.problems:
                output.note(f"✗ {one.share.host}: {problem}.")
        output.note("What would help: " + "; or ".join(planned.remedies) + ".")
        return
    for share in planned.plan.shares:
        speed = planned.speeds.get(share.host)
        if speed is not None and speed.tokens_per_second:
            output.note(f"{share.host}: {speed.tokens_per_second:,.0f} tokens/s, {speed.source}")
    output.line(_total(planned))
    if (cost := planned.bill).spent is not None:
        output.line(f"It will cost {said(cost).replace(' so far', '')}.")
    output.line(f"plan of epoch {planned.plan.epoch} written to {planned.path}")


def _plan_rows(forecasts: list[Forecast]) -> list[tuple[object, ...]]:
    return [
        (
            one.share.host,
            one.share.records,
            one.share.tokens,
            size(one.disk_bytes),
            size(one.disk_room_bytes),
            size(one.ramdisk_peak_bytes),
            "unknown" if one.hours is None else duration(one.hours * 3600),
        )
        for one in forecasts
    ]


def _total(planned: Planned) -> str:
    tokens = sum(one.share.tokens for one in planned.forecasts)
    on_disk = size(sum(one.disk_bytes for one in planned.forecasts))
    if planned.hours is None:
        return f"{tokens:,} tokens, {on_disk}; for the time, give --rate (tokens/s of each host) or `tokens_per_second`"
    return f"{tokens:,} tokens, {on_disk}; the last host ends after {duration(planned.hours * 3600)}"


def plan_document(planned: Planned) -> dict[str, object]:
    """Return the plan for `--json`."""
    hosts = {
        one.share.host: {
            "records": one.share.records,
            "tokens": one.share.tokens,
            "disk_bytes": one.disk_bytes,
            "disk_room_bytes": one.disk_room_bytes,
            "ramdisk_peak_bytes": one.ramdisk_peak_bytes,
            "hours": one.hours,
            "tokens_per_second": planned.speeds[one.share.host].tokens_per_second,
            "speed_source": planned.speeds[one.share.host].source,
            "problems": list(one.problems),
        }
        for one in planned.forecasts
    }
    return {
        "run": planned.plan.run,
        "epoch": planned.plan.epoch,
        "fits": planned.fits,
        "hours": planned.hours,
        "dollars": planned.bill.spent,
        "path": str(planned.path) if planned.path else None,
        "remedies": planned.remedies,
        "hosts": hosts,
    }
