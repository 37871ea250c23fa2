"""Checks whether a running server still serves: asks it for a generation, and in capture modes for the canary.

Runs on the host, called by `serve` and by the verb `servers` (for `inv status` and `inv doctor`). Changes nothing. Only
a generation tells: a server whose scheduler hangs still accepts connections and answers `/health`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from remote.servers.lifecycle import key
from remote.servers.probing.ready import Readiness
from remote.servers.probing.sglang_process import TITLE
from remote.shared.errors import HostError
from remote.shared.messages.server import ServerState
from remote.shared.paths import ServerPaths
from remote.shared.processes import members
from remote.shared.supervised.tasks import together

SERVE_SECONDS = 90.0
"""For `serve`: time for the canary, for its comparison in another process, and for an extractor's queued prefills."""
LOOK_SECONDS = 10.0
"""For `inv status`: a generation of one token takes milliseconds on an idle server."""
MOVED_SECONDS = 10.0
"""A server whose capture wrote rows within this time serves, however long its queue is."""


class WedgedError(HostError):
    """A server accepts connections but serves nothing."""

    kind = "wedged"


async def ask(state: ServerState, paths: ServerPaths, seconds: float, *, canary: bool) -> str:
    """Return a sentence on the answer; raises WedgedError without an answer in time, HostError if capture is wrong.

    If the server spans hosts, only rank 0 is asked; for the other ranks their supervisors' word counts.
    """
    if state.spec.node_rank:
        return "its first node answers for it"
    began = time.monotonic()
    readiness = Readiness(state.port, key.headers(paths), state.capture)
    try:
        proof = await asyncio.wait_for(readiness.once(canary=canary), seconds)
    except asyncio.TimeoutError:
        raise _silent(state, f"no generation came back within {seconds:.0f} s") from None
    except ConnectionError as error:
        raise _silent(state, str(error)) from error
    return proof or f"a generation came back after {time.monotonic() - began:.1f} s"


async def problems(states: Iterable[tuple[ServerState, ServerPaths]]) -> dict[str, HostError]:
    """Ask several servers at once for a generation; returns the errors of those that did not answer, by name."""

    async def one(state: ServerState, paths: ServerPaths) -> HostError | None:
        if moved_lately(state):
            return None
        try:
            await ask(state, paths, LOOK_SECONDS, canary=False)
        except HostError as error:
            return error
        return None

    asked = list(states)
    answers = await together(*(one(state, paths) for state, paths in asked))
    return {state.name: answer for (state, _), answer in zip(asked, answers, strict=True) if answer is not None}


def moved_lately(state: ServerState) -> bool:
    """Return whether the server's capture wrote its status lately, as it does every second while rows pass."""
    if state.capture is None:
        return False
    newest = max((path.stat().st_mtime for path in Path(state.capture.dump_dir).glob(".capture-*.json")), default=0.0)
    return 0 <= time.time() - newest < MOVED_SECONDS


def _silent(state: ServerState, what: str) -> WedgedError:
    stopped = _stopped(state)
    why = f"; {', '.join(stopped)}" if stopped else ""
    if not stopped and moved_lately(state):
        return WedgedError(
            f"Server {state.name!r} is busy: {what}, but its capture is writing rows.",
            remedy="If it stays busy while no extraction runs, `inv restart` starts it again.",
        )
    return WedgedError(
        f"Server {state.name!r} is wedged: port {state.port} accepts connections, but {what}{why}.",
        remedy=f"`inv restart --mode {state.mode}` starts it again; `inv logs` shows its last lines.",
    )


def _stopped(state: ServerState) -> list[str]:
    """Return a phrase for each process of the server that is frozen or stuck in the kernel."""
    found = []
    for process in members(state.server, state.mark) if state.server else []:
        try:
            status, title = process.status(), " ".join(process.cmdline()[:1])
        except psutil.Error:
            continue
        name = title.split(" ")[0] if title.startswith(TITLE) else process.name()
        if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            found.append(f"{name} (pid {process.pid}) is frozen (state T: SIGSTOP or a debugger)")
        elif status == psutil.STATUS_DISK_SLEEP:
            found.append(f"{name} (pid {process.pid}) sits in a kernel call that does not end (state D)")
    return found
