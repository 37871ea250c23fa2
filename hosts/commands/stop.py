"""`inv stop` and `inv free`: end Roost's own servers; name, or by force end, what else stands in their way."""

from __future__ import annotations

from collections.abc import Callable

from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.inventory.servers import server_needs
from remote.shared.messages.envelope import Progress
from remote.shared.messages.server import StopRequest, StopResult

OVERHEAD_SECONDS = 300.0
"""Beside the grace period: SIGKILL, memory given back, a lock that another command holds for a moment."""


def stop(
    fleet: Fleet,
    *,
    names: list[str],
    everything: bool = False,
    force: bool = False,
    dry_run: bool = False,
    grace_seconds: float = 30.0,
    wait: bool = False,
    on_progress: Callable[[Host, Progress], None] | None = None,
) -> list[Outcome[StopResult]]:
    """Stop the servers called `names` (empty for all) on all hosts at once.

    With `everything`, any SGLang process of the host counts as being in the way, whatever it holds.
    """

    def request(host: Host) -> StopRequest:
        return StopRequest(
            names=names,
            needs=server_needs(host),
            everything=everything,
            force=force,
            dry_run=dry_run,
            grace_seconds=grace_seconds,
            wait_for_lock=wait,
        )

    return fleet.call("stop", request, StopResult, deadline=grace_seconds + OVERHEAD_SECONDS, on_progress=on_progress)
