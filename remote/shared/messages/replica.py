"""A replica: one node's whole session of a run that is shared out on a cluster."""

from __future__ import annotations

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.server import ServerSpec


class ReplicaSpec(Message):
    """`replicas.json` in the run's shared folder: what every replica of the run does, whoever starts it."""

    epoch: int
    """Of the assignment that holds the whole run."""
    chunk_tokens: int = Field(ge=1)
    servers: list[ServerSpec] = Field(default_factory=list)
    serve_with: list[str] = Field(default_factory=list)
    """A command that starts the servers instead; it gets the replica's working directory as its last word."""
    lease_seconds: float = 120.0
    ahead: int = Field(default=2, ge=1)
    """Chunks that a replica holds at once."""


class ReplicaRequest(Message):
    """Be a replica until the run is over, in the foreground of this very process."""

    folder: str
    """The run's folder on the shared file system."""
    name: str
    """`<replica>.<attempt>`, the attempt a number that rises with every start of the same replica."""
    scratch: str
    """A folder on this node's own disk."""
    tied: bool = False
    """End at once when stdin ends: whoever started this replica holds the other end, and is gone then."""


class ReplicaResult(Message):
    """What a replica did."""

    published: int = 0
    """Chunks."""
    refused: int = 0
    """Chunks that somebody else had published first."""
    over: bool = False
    """Whether the whole run is."""


class ChunkRows(Message):
    """`rows.json` of a published chunk: the ledger's rows of its records, as the replica had them."""

    holder: str
    token: int
    rows: list[dict[str, object]]
