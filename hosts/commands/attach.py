"""`inv attach`, `inv attached` and `inv detach`: capture into each host's SGLang, how it stands, and out again."""

from __future__ import annotations

from collections.abc import Callable

from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from remote.shared.messages.attach import AttachedRequest, AttachReport, AttachRequest, DetachRequest
from remote.shared.messages.envelope import Progress
from remote.shared.messages.server import Attach

DEADLINE_SECONDS = 300.0
"""Importing SGLang on a box with cold file caches takes a minute and more."""

OnProgress = Callable[[Host, Progress], None]


def attach(
    fleet: Fleet,
    *,
    way: Attach | None = None,
    dry_run: bool = False,
    wait: bool = False,
    on_progress: OnProgress | None = None,
) -> list[Outcome[AttachReport]]:
    """Attach capture on all hosts at once, the inventory's way or `way`; again is nothing."""

    def request(host: Host) -> AttachRequest:
        return AttachRequest(attach=way or host.attach, env=host.env, dry_run=dry_run, wait_for_lock=wait)

    return fleet.call("attach", request, AttachReport, deadline=DEADLINE_SECONDS, on_progress=on_progress)


def attached(fleet: Fleet, *, imports: bool, on_progress: OnProgress | None = None) -> list[Outcome[AttachReport]]:
    """Say how capture stands in the files and in the servers that run; with `imports`, import one too."""

    def request(host: Host) -> AttachedRequest:
        return AttachedRequest(env=host.env, check_import=imports)

    return fleet.call("attached", request, AttachReport, deadline=DEADLINE_SECONDS, on_progress=on_progress)


def detach(
    fleet: Fleet, *, dry_run: bool = False, wait: bool = False, on_progress: OnProgress | None = None
) -> list[Outcome[AttachReport]]:
    """Put the original model files back on all hosts at once, byte for byte."""

    def request(host: Host) -> DetachRequest:
        return DetachRequest(env=host.env, dry_run=dry_run, wait_for_lock=wait)

    return fleet.call("detach", request, AttachReport, deadline=DEADLINE_SECONDS, on_progress=on_progress)
