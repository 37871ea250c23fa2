"""A host that records come from, as the engine sees it: a ledger to read, and records to free.

Runs where the shards land. `Asked` calls the host's verbs over the connection that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from remote.shared.messages.extract import (
    Delivered,
    FreedRequest,
    IndicesResult,
    ShardBatch,
    ShardRow,
    ShardsRequest,
    ShardsResult,
)
from remote.shared.messages.transfer import Source
from remote.shared.transfer.bounds import Bounds, Listing

R = TypeVar("R", bound=BaseModel)


@dataclass
class Offer:
    """The records of a host, as far as its ledger has been read."""

    rows: list[ShardRow] = field(default_factory=list)
    cursor: int = 0
    status: str = ""
    """The status of the host's extractor."""


class Origin(Protocol):
    """A host of the engine. Both calls raise RoostError; ConnectionError too if the host may come back."""

    source: Source

    def offers(self, after: int) -> Offer:
        """Return the rows of the host's ledger that are newer than the cursor `after`, each within the run's bounds."""

    def free(self, records: list[Delivered]) -> IndicesResult:
        """Let the host delete delivered records; a record that it has made again since then stays."""


class Ask(Protocol):
    """Runs one verb on a host and passes on its items; raises the verb's own RoostError."""

    def __call__(
        self, verb: str, request: BaseModel, result: type[R], /, *, on_item: Callable[[dict[str, Any]], None] | None
    ) -> R: ...


@dataclass
class Asked:
    """An origin whose host answers verbs."""

    source: Source
    bounds: Bounds
    ask: Ask

    def offers(self, after: int, each: Callable[[ShardRow], None] | None = None) -> Offer:
        """With `each`, rows are passed to it and not kept: a million rows are hundreds of megabytes."""
        return listed(self.ask, self.bounds, ShardsRequest(identity=self.bounds.identity, after=after), each)

    def free(self, records: list[Delivered]) -> IndicesResult:
        request = FreedRequest(identity=self.bounds.identity, records=records)
        return self.ask("freed", request, IndicesResult, on_item=None)


def listed(ask: Ask, bounds: Bounds, request: ShardsRequest, each: Callable[[ShardRow], None] | None = None) -> Offer:
    """Return a host's offer, without rows if `each` takes them; raises OfferError for a row not of this run."""
    rows: list[ShardRow] = []
    listing = Listing(bounds, each or rows.append)
    result = ask(
        "shards", request, ShardsResult, on_item=lambda value: listing.take(ShardBatch.model_validate(value).rows)
    )
    return Offer(rows, result.cursor, result.status)
