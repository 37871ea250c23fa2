"""A replica: one node's session of a run on a cluster."""

from __future__ import annotations

from pydantic import Field

from remote.shared.messages.dataset import Ranges
from remote.shared.messages.envelope import Message
from remote.shared.messages.server import ServerSpec


class ReplicaSpec(Message):
    """`replicas.json` in the run's shared folder: the specification of every replica, however it is started."""

    epoch: int
    """The epoch of the assignment with the whole run."""
    chunk_tokens: int = Field(ge=1)
    servers: list[ServerSpec] = Field(default_factory=list)
    serve_with: list[str] = Field(default_factory=list)
    """A command that starts the servers instead of `serve`; its last argument is the replica's working directory."""
    lease_seconds: float = 120.0
    ahead: int = Field(default=2, ge=1)
    """Number of chunks that a replica has at once."""
    round: int = 0
    """How often the run was shared out again, each time with a new queue."""
    records: Ranges = Field(default_factory=list)
    """The records of this round; empty for all records of the assignment."""


class ReplicaRequest(Message):
    """Be a replica in this process until the run is over."""

    folder: str
    """The run's folder on the shared file system."""
    name: str
    """`<replica>.<attempt>`; the attempt is a number that rises with every start of the same replica."""
    scratch: str
    """A folder on this node's own disk."""
    tied: bool = False
    """End at once when stdin closes, because then the process that started this replica has ended."""


class ReplicaResult(Message):
    """The work of a replica."""

    published: int = 0
    """Chunks."""
    refused: int = 0
    """Chunks that another replica had published first."""
    over: bool = False
    """Whether the whole run is over."""


class ChunkRows(Message):
    """`rows.json` of a published chunk: the rows of its records in the replica's ledger."""

    holder: str
    token: int
    rows: list[dict[str, object]]
