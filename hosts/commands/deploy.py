"""`inv deploy`: the payload on every host, and capture attached to the SGLang that is installed there."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel

from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from hosts.transport.payload import current_payload
from remote.shared.messages.attach import AttachReport, AttachRequest
from remote.shared.messages.envelope import Progress
from remote.shared.messages.hello import HelloRequest, HelloResult

ATTACH_DEADLINE_SECONDS = 300.0
"""Importing SGLang on a box with cold file caches takes a minute and more."""


class Deployed(BaseModel):
    """What a deploy did on one host, or would do."""

    payload: str
    had_payload: bool
    sent_bytes: int
    dry_run: bool
    attach: AttachReport | None = None
    """None in a dry run on a host without the payload: only the payload can look at its SGLang."""


def deploy(fleet: Fleet, *, dry_run: bool, on_progress: Callable[[Host, Progress], None]) -> list[Outcome[Deployed]]:
    """Place the payload where it is missing and attach capture; with `dry_run` say so and change nothing."""

    def one(backend: Backend) -> Deployed:
        payload = current_payload()
        had = backend.has_payload()
        deployed = Deployed(
            payload=payload.digest, had_payload=had, sent_bytes=0 if had else len(payload.archive), dry_run=dry_run
        )
        if dry_run and not had:
            return deployed
        backend.call("hello", HelloRequest(), HelloResult)
        host = backend.host
        deployed.attach = backend.call(
            "attach",
            AttachRequest(attach=host.attach, env=host.env, dry_run=dry_run),
            AttachReport,
            deadline=ATTACH_DEADLINE_SECONDS,
            on_progress=lambda line: on_progress(host, line),
        )
        return deployed

    return fleet.each(one)
