"""Shards to what a trainer loads (verb `export`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.server import FinalNorm

Format = Literal["speculators", "speculators-v1", "specforge", "model-optimizer"]
ExportDtype = Literal["extracted", "fp8"]
"""Of the exported states: as they were extracted, or float8_e4m3fn with scales (format `speculators` only)."""


class ExportRequest(Message):
    """Write a destination's records in another layout; the originals are not touched."""

    folder: str
    """A destination: the dataset, `hidden_states/` and `roost/`."""
    out: str
    """Made new, or an unfinished export of the same that is gone on with."""
    format: Format = "speculators"
    dtype: ExportDtype = "extracted"
    model: str = ""
    """The model's folder, for its last norm; only needed if the format wants the state after it."""
    partial: bool = False
    """Export what is there although records are missing; their indices stay free."""
    processes: int | None = None
    """Default: one a core."""


class SlotError(Message):
    """What one slot lost in float8: |loaded - extracted| / |extracted| of a token's state, over all tokens."""

    boundary: int
    mean: float
    worst: float


class ExportCard(Message):
    """`roost/export.json` of an export: what a person needs to know a year later."""

    format: Format
    dtype: ExportDtype = "extracted"
    errors: list[SlotError] = Field(default_factory=list)
    """One a slot if `dtype` is `fp8`, else none."""
    records: int
    tokens: int
    dataset: str
    """Digest of the dataset."""
    identity: RunIdentity
    convention: str = "boundary k: the residual stream after k blocks; n: after all blocks"
    blocks: list[int]
    """The same slots counted as SGLang and EAGLE do: the 0-based block whose output each slot is."""
    final_state: FinalNorm
    """Of the exported final state: before (`pre`) or after (`post`) the model's last norm."""
    norm: str = ""
    """Digest of the norm weight and eps that made a `post` state of a `pre` one, as `XXH3@EPS`."""
    versions: dict[str, str] = Field(default_factory=dict)
    """SGLang and capture, as the shards name them."""
    missing: int = 0
    """Records of the dataset that are not in the export."""
    content: str
    """xxh3-128 over the exported records' indices and shard digests, in order."""


class ExportResult(Message):
    """What was written."""

    out: str
    load: str
    """The folder to give to the trainer."""
    card: ExportCard
    linked: int
    """Records that are hard links to the originals and took no space."""
    written_bytes: int
    wall_seconds: float = 0.0
