"""A host that this host pulls from: its verbs are run over this host's own login.

Runs on the host that becomes the destination. The payload is there already: the laptop has placed it. The far end is
not trusted: what it says is bounded, and a silence ends the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from remote.shared.errors import HostError, RoostError, told
from remote.shared.messages.envelope import LINE, Call, Failure, Item, Line, Result
from remote.shared.messages.extract import (
    Delivered,
    FreedRequest,
    IndicesResult,
    ShardBatch,
    ShardsRequest,
    ShardsResult,
)
from remote.shared.messages.transfer import Source
from remote.shared.transfer.bounds import Bounds, Listing
from remote.shared.transfer.engine import Offer
from remote.shared.transfer.hostpull import LostHostError
from remote.shared.transfer.stream import Child, StreamLost

CALL_SECONDS = 600.0
SILENCE_SECONDS = 60.0
"""A verb sends a beat every 5 s; before its first one stand a login and a Python's start."""
LINE_BYTES = 32 << 20
LONGEST_MESSAGE = 4000

R = TypeVar("R", bound=BaseModel)


class LoginOrigin:
    """The engine's host on a host. Raises LostHostError if the connection breaks, the verb's own error otherwise."""

    def __init__(self, source: Source, bounds: Bounds) -> None:
        self.source = source
        self._bounds = bounds

    def offers(self, after: int) -> Offer:
        """Rows of the host's ledger that are newer than the cursor `after`, each within the run's bounds."""
        listing = Listing(self._bounds)
        result = self._call(
            "shards",
            ShardsRequest(identity=self._bounds.identity, after=after),
            ShardsResult,
            lambda value: listing.take(ShardBatch.model_validate(value).rows),
        )
        return Offer(listing.rows, result.cursor, result.status)

    def free(self, records: list[Delivered]) -> IndicesResult:
        """Let the host delete what is delivered; a record that it has made anew since stays."""
        return self._call("freed", FreedRequest(identity=self._bounds.identity, records=records), IndicesResult)

    def _call(
        self, verb: str, request: BaseModel, result: type[R], on_item: Callable[[dict[str, Any]], None] | None = None
    ) -> R:
        call = Call(verb=verb, request=request.model_dump(mode="json"), workdir=self.source.workdir, tethered=True)
        ends_at = time.monotonic() + CALL_SECONDS
        try:
            with Child(self.source.verbs, SILENCE_SECONDS) as child:
                child.write(call.model_dump_json().encode() + b"\n")
                while True:
                    line = _parsed(child.line(LINE_BYTES, ends_at))
                    if isinstance(line, Item) and on_item is not None:
                        on_item(line.value)
                    elif isinstance(line, Failure):
                        raise _error(line)
                    elif isinstance(line, Result):
                        return result.model_validate(line.value)
        except StreamLost as error:
            raise LostHostError(f"The host could not be asked ({verb}): {error}.") from error
        except ValidationError as error:
            raise HostError(f"The host's answer to {verb} is not Roost's.") from error


def _parsed(raw: bytes) -> Line | None:
    """One line of the answer; None for what a login shell prints."""
    try:
        return LINE.validate_json(raw)
    except ValidationError:
        return None


def _error(failure: Failure) -> RoostError:
    return told(failure.kind, failure.message[:LONGEST_MESSAGE], failure.remedy[:LONGEST_MESSAGE])
