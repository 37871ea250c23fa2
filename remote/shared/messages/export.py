"""The request and answer of `export`, which writes shards in a trainer's own layout."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.server import FinalNorm

Format = Literal["speculators", "speculators-v1", "specforge", "model-optimizer"]
ExportDtype = Literal["extracted", "fp8"]
"""The dtype of exported states: as extracted, or float8_e4m3fn with scales (format `speculators` only)."""


class ExportRequest(Message):
    """Write a destination's records in another layout; the originals stay as they are."""

    folder: str
    """The folder of a destination, with the dataset, `hidden_states/` and `roost/`."""
    out: str
    """A new folder, or the folder of the same export if it was interrupted."""
    format: Format = "speculators"
    dtype: ExportDtype = "extracted"
    model: str = ""
    """The model's folder, needed only if the format wants the state after the last norm."""
    partial: bool = False
    """Export the present records even if others are missing; the indices of missing records stay unused."""
    processes: int | None = None
    """The number of processes; None means one for each core."""


class SlotError(Message):
    """The loss of one slot in float8: |loaded - extracted| / |extracted| of a token's state, over all tokens."""

    boundary: int
    mean: float
    worst: float


class ExportCard(Message):
    """`roost/export.json` of an export: what a person needs to know about it a year later."""

    format: Format
    dtype: ExportDtype = "extracted"
    errors: list[SlotError] = Field(default_factory=list)
    """An error for each slot if `dtype` is `fp8`, else none."""
    records: int
    tokens: int
    dataset: str
    """The digest of the dataset."""
    identity: RunIdentity
    convention: str = "boundary k: the residual stream after k blocks; n: after all blocks"
    blocks: list[int]
    """The same slots as SGLang and EAGLE count them: the 0-based block whose output each slot is."""
    final_state: FinalNorm
    """Whether the exported final state is before (`pre`) or after (`post`) the model's last norm."""
    norm: str = ""
    """Digest of the norm weight and eps that turned `pre` states into `post` states, as `XXH3@EPS`."""
    versions: dict[str, str] = Field(default_factory=dict)
    """The versions of SGLang and capture in the shards."""
    missing: int = 0
    """The number of the dataset's records that are not in the export."""
    content: str
    """The xxh3-128 over the exported records' indices and shard digests, in order."""


class ExportResult(Message):
    """The export that was written."""

    out: str
    load: str
    """The folder to give to the trainer."""
    card: ExportCard
    linked: int
    """The number of records that are hard links to the originals and take no space."""
    written_bytes: int
    wall_seconds: float = 0.0
