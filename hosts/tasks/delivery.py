"""The task `pull`, which brings shards from the hosts."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import cast

from invoke.context import Context
from pydantic import ByteSize, TypeAdapter, ValidationError

from hosts.commands import pull as pulling
from hosts.commands.prepare import local_path
from hosts.commands.pull import Pulled
from hosts.commands.runs import plan_for
from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.console.pull import show_pulled, watching
from hosts.console.verify import show_exported
from hosts.errors import UsageError
from hosts.fleet import Fleet, fleet_of
from hosts.pull.bucket import is_bucket
from hosts.pull.sources import Place, place_of
from hosts.tasks.moving import moving
from hosts.tasks.notifying import NOTIFY, Teller
from hosts.tasks.results import export_dtype
from hosts.tasks.session import DRY_RUN, JSON, TARGET, chosen_run, finish, roost_task, session
from remote.shared.messages.export import ExportDtype, ExportRequest, ExportResult
from remote.shared.messages.transfer import Compress, HostTally, Limits, Store, Wish
from remote.shared.words import counted


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    to="folder for the dataset and its hidden states; or a bucket (s3://bucket/run), or a host (gpu3:/data/run)",
    run="name of the run (default: the one planned last)",
    streams="streams for each host (default: found by measuring)",
    limit_rate="limit in bytes per second for all streams together, as in 50MB",
    compress="lossless compression on the wire: never, always, or auto (measures which is faster)",
    store="how shards are stored here: plain, or compressed (see inv unpack)",
    follow="continue while extraction runs, until the run is complete",
    free="let each host delete its copy of every record that is verified and durable here",
    notify=NOTIFY["notify"],
    check="read the records of earlier pulls again; damaged records are pulled again",
    export="folder for an export in the inventory's `format`, made as soon as no record is missing",
    dtype="dtype of --export: fp8 for float8 states with scales, half the size, for speculators 0.9",
    example="inv pull --hosts all --run kimi-1 --to /data/kimi-1 --follow --free",
)
def pull(
    context: Context,
    to: str = "",
    run: str = "",
    host: str | None = None,
    hosts: str | None = None,
    streams: int = 0,
    limit_rate: str = "",
    compress: str = "never",
    store: str = "plain",
    follow: bool = False,
    free: bool = False,
    check: bool = False,
    notify: bool = False,
    export: str = "",
    dtype: str = "",
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Bring verified shards back as fast as the network allows; the call after an interruption brings the rest."""
    with session(host, hosts, inventory, json) as (fleet, output):
        if not to:
            raise UsageError("--to is missing.")
        if streams < 0 or streams > 64:
            raise UsageError(f"--streams is {streams}; it can be 1 to 64.")
        if store not in ("plain", "compressed"):
            raise UsageError(f"--store is {store!r}; it can be plain or compressed.")
        if compress not in ("never", "auto", "always"):
            raise UsageError(f"--compress is {compress!r}; it can be never, auto or always.")
        wanted = _wanted_dtype(fleet, to, export, dtype)
        rate = _rate(limit_rate)
        limits = Limits(streams=streams or None, bytes_per_second=rate, compress=cast(Compress, compress))
        named = chosen_run(fleet, output, run)
        wish = Wish(run=named, limits=limits, follow=follow, free=free, check=check)
        if dry_run:
            finish(show_pulled(output, pulling.dry_run(fleet, wish, to)))
            return
        teller = Teller(fleet, output, f"pull of {named}", "finished", _host_said, _host_failed) if notify else None
        with moving(fleet, output, plan_for(fleet, named).identity) if follow else nullcontext():
            pulled = pulling.pull(fleet, wish, to, watching(output), cast(Store, store))
        code = show_pulled(output, pulled)
        if teller is not None:
            for outcome in pulled.outcomes:
                teller(outcome)
        if export:
            _export(fleet, output, pulled, to, export, wanted)
        finish(code)


def _host_said(tally: HostTally) -> str:
    return f"{counted(tally.delivered, 'record')} delivered, {len(tally.failed):,} failed"


def _host_failed(tally: HostTally) -> bool:
    return bool(tally.failed)


def _wanted_dtype(fleet: Fleet, to: str, export: str, dtype: str) -> ExportDtype:
    """Return the dtype of the export; raises UsageError before the pull begins if the export is impossible."""
    wanted = export_dtype(dtype)
    if not export and dtype:
        raise UsageError("--dtype needs --export.", remedy="Add --export FOLDER, or leave out --dtype.")
    if export and is_bucket(to):
        raise UsageError("--export cannot read from a bucket.", remedy="Pull to a folder, or leave out --export.")
    host = _destination(fleet, to).host
    if wanted == "fp8" and host.format != "speculators":
        raise UsageError(
            f"--dtype fp8 is for the format speculators; the inventory's format of {host.name} is {host.format}.",
            remedy="Pull without --export, then run inv export --format speculators --dtype fp8.",
        )
    return wanted


def _destination(fleet: Fleet, to: str) -> Place:
    return place_of(fleet, to) or Place(fleet.inventory.local, to)


def _export(fleet: Fleet, output: Output, pulled: Pulled, to: str, out: str, dtype: ExportDtype) -> None:
    """Export the pulled folder `to` (a folder here, or HOST:FOLDER) to `out`, in the inventory's `format`.

    Only SpecForge's layout needs the model, for its last norm; it is the inventory's `model` of that host.
    """
    if pulled.missing:
        output.note(f"Not exported yet: {counted(pulled.missing_records, 'record is', 'records are')} missing.")
        return
    place = _destination(fleet, to)
    host = place.host
    request = ExportRequest(
        folder=local_path(host, place.folder),
        out=local_path(host, out),
        format=host.format,
        dtype=dtype,
        model=host.model or "" if host.format == "specforge" else "",
    )
    with fleet_of(fleet.inventory, [host]) as there, live_lines(output, there) as lines:
        told = partial(lines, host)
        result = there.backend(host).call("export", request, ExportResult, deadline=None, on_progress=told)
    show_exported(output, result)


def _rate(text: str) -> float | None:
    """Return bytes per second from text such as `50MB`."""
    if not text:
        return None
    try:
        rate = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        rate = 0
    if rate <= 0:
        raise UsageError(f"--limit-rate {text!r} is not a size such as 50MB.")
    return float(rate)
