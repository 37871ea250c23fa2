"""The layout of a dump, which is also the shard's: safetensors with a header area of fixed size. Needs no torch.

`token_ids` I64 [rows] comes first, then `hidden_states` [rows, slots, hidden]. The header area is padded, so that the
place of every row is known before the metadata is, and each row is written once, to its final place.
"""

from __future__ import annotations

from dataclasses import dataclass

from remote.shared.shard import header
from remote.shared.shard.header import ITEM_BYTES, TensorSpec

CONVENTION = "boundary: state after k blocks"
TOKENS = "token_ids"
STATES = "hidden_states"
_UNIT = 4096
_BASE = 2048
_PER_SLOT = 96


@dataclass(frozen=True)
class Layout:
    """Sizes and offsets (bytes) of one record's dump and shard."""

    rows: int
    slots: int
    hidden: int
    dtype: str
    """safetensors' name: BF16, F16 or F32."""

    @property
    def header_bytes(self) -> int:
        """The size of the header area: whole pages for the header's length, its JSON and the padding."""
        needed = _BASE + _PER_SLOT * self.slots
        return -(-needed // _UNIT) * _UNIT

    @property
    def row_bytes(self) -> int:
        """The number of bytes of one row's states in all slots."""
        return self.slots * self.hidden * ITEM_BYTES[self.dtype]

    @property
    def tokens_offset(self) -> int:
        return self.header_bytes

    @property
    def states_offset(self) -> int:
        return self.header_bytes + 8 * self.rows

    @property
    def size(self) -> int:
        """The number of bytes of the whole file."""
        return self.states_offset + self.rows * self.row_bytes

    def row_offset(self, row: int) -> int:
        """Return the offset of row `row` of `hidden_states`."""
        return self.states_offset + row * self.row_bytes

    def header(self, metadata: dict[str, str]) -> bytes:
        """Return the header area with `metadata`; raises ValueError if the metadata does not fit."""
        tensors = [
            TensorSpec(TOKENS, "I64", (self.rows,)),
            TensorSpec(STATES, self.dtype, (self.rows, self.slots, self.hidden)),
        ]
        return header.write(tensors, metadata, area=self.header_bytes)
