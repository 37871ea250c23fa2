"""Runs verbs on a host that this host pulls from, over this host's own login.

Runs on the host that becomes the destination. The laptop has placed the payload on the far host. The far end is not
trusted: its output is bounded, and a silence ends the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from remote.shared.errors import HostError, told
from remote.shared.messages.envelope import LINE, Call, Failure, Item, Line, Result
from remote.shared.messages.transfer import Source
from remote.shared.transfer.bounds import Bounds
from remote.shared.transfer.hostpull import LostHostError
from remote.shared.transfer.origin import Asked
from remote.shared.transfer.stream import Child, StreamLost

CALL_SECONDS = 600.0
SILENCE_SECONDS = 60.0
"""A verb sends a beat every 5 s, but its first one only after a login and the start of Python."""
LINE_BYTES = 32 << 20
LONGEST_MESSAGE = 4000

R = TypeVar("R", bound=BaseModel)


def login_origin(source: Source, bounds: Bounds) -> Asked:
    """Return the engine's origin for a host that is reached from this host."""
    return Asked(source, bounds, partial(_call, source))


def _call(
    source: Source,
    verb: str,
    request: BaseModel,
    result: type[R],
    /,
    *,
    on_item: Callable[[dict[str, Any]], None] | None,
) -> R:
    """Run one verb. Raises LostHostError if the connection breaks, the verb's own error otherwise."""
    call = Call(verb=verb, request=request.model_dump(mode="json"), workdir=source.workdir, tethered=True)
    ends_at = time.monotonic() + CALL_SECONDS
    try:
        with Child(source.verbs, SILENCE_SECONDS) as child:
            child.write(call.model_dump_json().encode() + b"\n")
            while True:
                line = _parsed(child.line(LINE_BYTES, ends_at))
                if isinstance(line, Item) and on_item is not None:
                    on_item(line.value)
                elif isinstance(line, Failure):
                    raise told(line.kind, line.message[:LONGEST_MESSAGE], line.remedy[:LONGEST_MESSAGE])
                elif isinstance(line, Result):
                    return result.model_validate(line.value)
    except StreamLost as error:
        raise LostHostError(f"The host could not be asked ({verb}): {error}.") from error
    except ValidationError as error:
        raise HostError(f"The host's answer to {verb} is not Roost's.") from error


def _parsed(raw: bytes) -> Line | None:
    """Return one line of the answer; None for output of a login shell."""
    try:
        return LINE.validate_json(raw)
    except ValidationError:
        return None
