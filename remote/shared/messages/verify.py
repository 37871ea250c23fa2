"""What `verify` looks at and what it finds."""

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
"""`missing`: in the ledger, not on disk. `run`: the file's own metadata names another run.
`stranger`: a file that no row of the ledger speaks of.
`values`: not finite, a row of zeros, or the same in every row.
`sums`: other rows than capture summed up."""


class VerifyRequest(Message):
    """Check the shards of a destination (`folder`), or of a run on this host (`run`)."""

    folder: str = ""
    """A destination: the dataset, `hidden_states/` and `roost/`."""
    run: RunIdentity | None = None
    """A run in this host's working directory; its token ids come from its assignment."""
    model: str = ""
    """A model folder: also compare a sample with what transformers computes."""
    parity_records: int = Field(default=4, ge=1)
    """Size of that sample."""
    threads: int | None = None
    """Default: one a core."""
    digests: bool = True
    """Read and hash every byte. Without it only names, sizes and headers are checked: seconds instead of hours."""


class Fault(Message):
    """One thing that is wrong with one record or file."""

    kind: FaultKind
    index: int | None = None
    file: str = ""
    message: str


class ParityResult(Message):
    """A record compared with transformers: relative error a slot (largest difference over largest value)."""

    index: int
    errors: list[float]


class VerifyResult(Message):
    """The whole answer; faults were also streamed as items while they were found."""

    identity: RunIdentity
    """The run whose records the place holds."""
    records: int
    """Rows of the ledger that were checked."""
    tokens: int
    size_bytes: int
    expected: int
    """Records of the dataset or of the assignment."""
    quarantined: int = 0
    delivered: int = 0
    """Of a run: records that were pulled and freed here."""
    faults: int
    by_kind: dict[FaultKind, int] = Field(default_factory=dict)
    without_sums: int = 0
    """Shards without row sums, made by an older Roost: exchanged rows would go unseen in them."""
    requeue: Ranges = Field(default_factory=list)
    """Records whose shard is wrong or gone: to be done again."""
    holes: Ranges = Field(default_factory=list)
    """Expected records without a row, not quarantined either: not extracted or not pulled yet."""
    parity: list[ParityResult] = Field(default_factory=list)
    has_dataset: bool = True
    """False if the dataset is not in the folder: token ids and lengths were not compared with it."""
    complete: bool
    """Every expected record is there and right."""
    wall_seconds: float = 0.0


class ForgetRequest(Message):
    """Take records out of a destination: their files and their rows."""

    folder: str
    identity: RunIdentity
    """Refused if the folder holds another run's records."""
    ranges: Ranges


class ForgetResult(Message):
    """How many rows there were."""

    records: int
