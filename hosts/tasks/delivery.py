"""Tasks that bring shards home: `pull`."""

from __future__ import annotations

from pathlib import Path

from invoke.context import Context
from pydantic import ByteSize, TypeAdapter, ValidationError

from hosts.commands import extract as extraction
from hosts.commands import pull as pulling
from hosts.console.pull import show_pulled, watching
from hosts.errors import UsageError
from hosts.pull.pull import Wish
from hosts.tasks.session import DRY_RUN, JSON, TARGET, finish, roost_task, session
from remote.transfer.hostpull import Limits


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    to="folder that gets the dataset and its hidden states",
    run="name of the run (default: the one planned last)",
    streams="streams a host (default: found by measuring)",
    limit_rate="bytes a second for all together, as in 50MB",
    follow="go on while extraction runs, until the run is complete",
    free="let each host delete what is verified and durable here",
)
def pull(
    context: Context,
    to: str = "",
    run: str = "",
    host: str | None = None,
    hosts: str | None = None,
    streams: int = 0,
    limit_rate: str = "",
    follow: bool = False,
    free: bool = False,
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
        limits = Limits(streams or None, _rate(limit_rate))
        wish = Wish(run or extraction.newest_run(fleet), limits, follow=follow, free=free)
        folder = Path(to).expanduser()
        if dry_run:
            finish(show_pulled(output, pulling.dry_run(fleet, wish, folder)))
        else:
            finish(show_pulled(output, pulling.pull(fleet, wish, folder, watching(output))))


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
