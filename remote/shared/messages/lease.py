"""Records that change hosts while a run is under way: what a host gives, and what the other one is given."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from remote.shared.messages.dataset import Ranges
from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity

LeaseId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class Lease(Message):
    """Open records of one host that another host does; made by the giver, and never given twice."""

    id: LeaseId
    giver: str
    holder: str
    ranges: Ranges
    lengths: list[int]
    """Tokens of each record, in the order of the ranges."""
    token_ids: str
    """Of all records, one after the other: int32, little-endian, in base64."""

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


class LeaseRequest(Message):
    """Give open records of a run away, from the end of this host's work."""

    identity: RunIdentity
    epoch: int
    """Refused if this host has another one: a newer epoch gives every record out anew."""
    holder: str
    """The host that they go to."""
    tokens: int = 0
    """About so many; at least one chunk, if one is left that this host has not begun."""
    longest: int = 0
    """Tokens of the longest record that the other host's servers take."""
    again: list[LeaseId] = Field(default_factory=list)
    """Instead, tell these leases again: they were given to `holder`, and it has not heard of them."""


class LeaseResult(Message):
    """How much was given; each lease was an item before."""

    leases: int = 0
    tokens: int = 0


class TakeRequest(Message):
    """Do these records too; a lease that this host has already changes nothing."""

    identity: RunIdentity
    epoch: int
    leases: list[Lease]


class TakeResult(Message):
    """How many records are new here."""

    records: int = 0


class LeasesRequest(Message):
    """Which leases of the run's newest epoch this host gave and was given; read-only."""

    identity: RunIdentity


class Moved(Message):
    """A lease as its two hosts remember it."""

    id: LeaseId
    giver: str
    holder: str
    ranges: Ranges


class LeasesResult(Message):
    """Of the newest epoch here."""

    epoch: int
    given: list[Moved] = Field(default_factory=list)
    taken: list[Moved] = Field(default_factory=list)
