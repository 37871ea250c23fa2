"""The host's trail of changing verbs and their operators; `recorded` writes to it around every such verb.

Runs on the host. The verb `trail` reads it; `inv history` shows it beside the laptop's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remote.context import Context
from remote.report import Report
from remote.shared.errors import UsageError
from remote.shared.messages.envelope import Call
from remote.shared.messages.trail import Ending, TrailRequest, TrailSteps
from remote.shared.paths import Workdir
from remote.shared.trail import Command, Trail


@contextmanager
def recorded(call: Call, report: Report) -> Iterator[None]:
    """Write to the trail that a verb begins and how it ends. No verb fails because the trail cannot be written.

    A verb that is repeated within a command (`freed`, during a pull) is written only when it first ends.
    """
    trail = Trail(Workdir(Path(call.workdir).expanduser()).trail)
    if call.typed.id and any(step.verb == call.verb and step.ending == "ok" for step in trail.of(call.typed.id)):
        yield
        return
    command = Command(trail, call.typed, call.operator, origin=_origin(), verb=call.verb)
    ending: Ending = "failed"
    try:
        yield
        ending = "ok"
    except KeyboardInterrupt:
        ending = "interrupted"
        raise
    except UsageError:
        ending = "refused"
        raise
    finally:
        command.end(ending)
        if command.lost:
            report.progress(command.lost)


def trail(request: TrailRequest, context: Context) -> TrailSteps:
    """Return the lines of this host's trail since a time."""
    return Trail(context.workdir.trail).read(request.since)


def _origin() -> str:
    """Return the address from which this connection comes; "" without SSH."""
    return os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
