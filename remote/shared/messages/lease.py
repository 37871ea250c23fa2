"""Records that move to another host during a run: the requests to the giving and to the taking host."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from remote.shared.messages.dataset import Ranges
from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity

LeaseId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class Lease(Message):
    """Open records that move from one host to another. The giving host never gives a record twice."""

    id: LeaseId
    giver: str
    holder: str
    ranges: Ranges
    lengths: list[int]
    """Tokens of each record, in the order of the ranges."""
    token_ids: str
    """The token ids of all records, one after the other: int32, little-endian, in base64."""

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


class LeaseRequest(Message):
    """Give open records of a run to another host, from the end of this host's work."""

    identity: RunIdentity
    epoch: int
    """The epoch; refused if this host has another one, because a newer epoch assigns every record again."""
    holder: str
    """The host that gets the records."""
    tokens: int = 0
    """About how many tokens to give: at least one chunk, if there is a chunk that this host has not begun."""
    longest: int = 0
    """Tokens of the longest record that the other host's servers accept."""
    again: list[LeaseId] = Field(default_factory=list)
    """Instead of giving more, send these leases again, because `holder` did not receive them."""


class LeaseResult(Message):
    """How much was given. The leases were streamed before."""

    leases: int = 0
    tokens: int = 0


class TakeRequest(Message):
    """Do these records too. A lease that this host already has changes nothing."""

    identity: RunIdentity
    epoch: int
    leases: list[Lease]


class TakeResult(Message):
    """How many of the records are new on this host."""

    records: int = 0


class LeasesRequest(Message):
    """Ask for the leases of the run's newest epoch that this host gave and was given; read-only."""

    identity: RunIdentity


class Moved(Message):
    """A lease in the records of its two hosts."""

    id: LeaseId
    giver: str
    holder: str
    ranges: Ranges


class LeasesResult(Message):
    """The leases of the newest epoch on this host."""

    epoch: int
    given: list[Moved] = Field(default_factory=list)
    taken: list[Moved] = Field(default_factory=list)
