"""Tasks that bring shards home: `pull`, `compress`, `unpack`."""

from __future__ import annotations

from typing import cast

from invoke.context import Context
from pydantic import ByteSize, TypeAdapter, ValidationError

from hosts.commands import export as exporting
from hosts.commands import pull as pulling
from hosts.commands import unpack as unpacking
from hosts.commands.pull import Pulled
from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.console.pull import show_pulled, watching
from hosts.console.text import size
from hosts.console.unpack import show_unpacked
from hosts.console.verify import show_exported
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.pull.bucket import is_bucket
from hosts.pull.pull import Wish
from hosts.tasks.places import PLACES, demand, places, show_places
from hosts.tasks.runs import chosen_run
from hosts.tasks.session import DRY_RUN, JSON, TARGET, finish, roost_task, session
from remote.shared.messages.codec import CompressResult, UnpackRequest
from remote.shared.messages.transfer import Store
from remote.shared.transfer.hostpull import Compress, Limits


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    to="folder that gets the dataset and its hidden states; or a bucket (s3://bucket/run), or a host (gpu3:/data/run)",
    run="name of the run (default: the one planned last)",
    streams="streams a host (default: found by measuring)",
    limit_rate="bytes a second for all together, as in 50MB",
    compress="on the wire, without loss: never, always, or auto (measured: whichever is faster)",
    store="how shards are kept here: plain, or compressed (see inv unpack)",
    follow="go on while extraction runs, until the run is complete",
    free="let each host delete what is verified and durable here",
    check="read again what was pulled earlier; what is damaged is pulled anew",
    export="once nothing is missing: a folder beside it that gets the run in the inventory's `format`",
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
    export: str = "",
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Bring verified shards back, as fast as the wire; interrupted anywhere, the next call sends what is missing."""
    with session(host, hosts, inventory, json) as (fleet, output):
        if not to:
            raise UsageError("--to is missing.")
        if streams < 0 or streams > 64:
            raise UsageError(f"--streams is {streams}; it can be 1 to 64.")
        if store not in ("plain", "compressed"):
            raise UsageError(f"--store is {store!r}; it can be plain or compressed.")
        if compress not in ("never", "auto", "always"):
            raise UsageError(f"--compress is {compress!r}; it can be never, auto or always.")
        if export and is_bucket(to):
            raise UsageError("--export writes from a folder.", remedy="Pull to a folder, or leave --export away.")
        limits = Limits(streams or None, _rate(limit_rate), cast(Compress, compress))
        wish = Wish(chosen_run(fleet, output, run), limits, follow=follow, free=free, check=check)
        if dry_run:
            finish(show_pulled(output, pulling.dry_run(fleet, wish, to)))
            return
        pulled = pulling.pull(fleet, wish, to, watching(output), cast(Store, store))
        code = show_pulled(output, pulled)
        if export:
            _export(fleet, output, pulled, to, export)
        finish(code)


def _export(fleet: Fleet, output: Output, pulled: Pulled, to: str, out: str) -> None:
    if pulled.missing:
        output.note(f"Not exported yet: {pulled.missing_records:,} records are missing.")
        return
    with live_lines(output, fleet) as lines:
        result = exporting.export_pulled(fleet, to, out, lines)
    show_exported(output, result)


@roost_task(TARGET, JSON, DRY_RUN, run="name of the run (default: the one planned last)")
def compress(
    context: Context,
    run: str = "",
    host: str | None = None,
    hosts: str | None = None,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Compress finished shards where they lie, without loss, to two thirds; pull and verify read them as they are."""
    with session(host, hosts, inventory, json) as (fleet, output):
        with live_lines(output, fleet) as lines:
            outcomes = unpacking.compress(fleet, chosen_run(fleet, output, run), lines, dry_run=dry_run)
        finish(output.outcomes(outcomes, _compressed_line, lambda result: bool(result.failed)))


def _compressed_line(result: CompressResult) -> str:
    if result.plain:
        return f"{result.plain:,} shards ({size(result.plain_bytes)}) would be compressed, to about two thirds"
    gained = result.plain_bytes - result.packed_bytes
    text = f"{result.compressed:,} shards compressed, {size(gained)} gained"
    return f"{text}, {len(result.failed):,} are damaged and stay plain" if result.failed else text


@roost_task(
    PLACES,
    JSON,
    iterable=["paths"],
    paths="a *.rz file or a folder of them; may be given several times",
    out="folder that gets the plain shards (default: beside their containers)",
    remove="delete each container once its plain shard is verified and durable",
)
def unpack(
    context: Context,
    paths: list[str] | None = None,
    out: str = "",
    remove: bool = False,
    host: str | None = None,
    hosts: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Make compressed shards plain again, each verified by its digest."""
    with places(host, hosts, inventory, json) as (fleet, output):
        demand("inv unpack --paths /data/kimi-1/hidden_states", paths=paths)
        request = UnpackRequest(paths=list(paths or []), out=out, remove=remove)
        with live_lines(output, fleet) as lines:
            outcomes = fleet.each(lambda backend: unpacking.unpack(backend, request, lines))
        finish(show_places(output, fleet, outcomes, show_unpacked, lambda result: bool(result.failed)))


def _rate(text: str) -> float | None:
    """Bytes a second from text such as `50MB`."""
    if not text:
        return None
    try:
        rate = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        rate = 0
    if rate <= 0:
        raise UsageError(f"--limit-rate {text!r} is not a size such as 50MB.")
    return float(rate)
