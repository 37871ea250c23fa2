"""The request of `verify`, and the faults that it finds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.dataset import Ranges
from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity

FaultKind = Literal[
    "missing",
    "run",
    "digest",
    "size",
    "shape",
    "dtype",
    "tokens",
    "values",
    "sums",
    "unreadable",
    "stranger",
    "parity",
]
"""`missing`: in the ledger but not on disk. `run`: the file's own metadata names another run.
`stranger`: a file without a row in the ledger. `values`: not finite, a row of zeros, or all rows equal.
`sums`: the row sums are not those that capture stored."""


class VerifyRequest(Message):
    """Check the shards of a destination (`folder`), or of a run on this host (`run`)."""

    folder: str = ""
    """The folder of a destination, with the dataset, `hidden_states/` and `roost/`."""
    run: RunIdentity | None = None
    """A run in this host's working directory; its token ids come from the assignment."""
    model: str = ""
    """A model's folder; if given, a sample is also compared with what transformers computes."""
    parity_records: int = Field(default=4, ge=1)
    """The size of that sample."""
    threads: int | None = None
    """The number of threads; None means one for each core."""
    digests: bool = True
    """Read and hash every byte. If False, only names, sizes and headers are checked: seconds instead of hours."""


class Fault(Message):
    """One fault of one record or file."""

    kind: FaultKind
    index: int | None = None
    file: str = ""
    message: str


class ParityResult(Message):
    """A record compared with transformers: each slot's relative error (largest difference over largest value)."""

    index: int
    errors: list[float]


class VerifyResult(Message):
    """The whole answer; each fault was also streamed when it was found."""

    identity: RunIdentity
    """The run whose records were checked."""
    records: int
    """The number of ledger rows that were checked."""
    tokens: int
    size_bytes: int
    expected: int
    """The number of records in the dataset or the assignment."""
    quarantined: int = 0
    delivered: int = 0
    """For a run on a host: records that were pulled and freed here."""
    faults: int
    by_kind: dict[FaultKind, int] = Field(default_factory=dict)
    without_sums: int = 0
    """Shards without row sums, from an older Roost; exchanged rows in them would go unnoticed."""
    requeue: Ranges = Field(default_factory=list)
    """Records whose shard is wrong or missing, which must be extracted again."""
    holes: Ranges = Field(default_factory=list)
    """Expected records that are neither in the ledger nor quarantined: not extracted, or not pulled yet."""
    parity: list[ParityResult] = Field(default_factory=list)
    has_dataset: bool = True
    """False if the folder lacks the dataset; token ids and lengths were then not compared."""
    complete: bool
    """Whether every expected record is present and right."""
    wall_seconds: float = 0.0


class ForgetRequest(Message):
    """Remove records from a destination: their files and their rows."""

    folder: str
    identity: RunIdentity
    """The run; refused if the folder holds records of another run."""
    ranges: Ranges


class ForgetResult(Message):
    """The number of rows that were removed."""

    records: int
