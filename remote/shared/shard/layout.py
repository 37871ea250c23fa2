"""The bytes of a dump, which are the bytes of the shard: safetensors with a header area of fixed size. No torch.

`token_ids` I64 [rows] comes first, `hidden_states` [rows, slots, hidden] after it. The header area is padded, so that
the place of every row is known before the metadata is, and rows are written where they stay.
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
    """As safetensors names it: BF16, F16 or F32."""

    @property
    def header_bytes(self) -> int:
        """Whole pages that hold the header's length, its JSON and the padding."""
        needed = _BASE + _PER_SLOT * self.slots
        return -(-needed // _UNIT) * _UNIT

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's states, all slots."""
        return self.slots * self.hidden * ITEM_BYTES[self.dtype]

    @property
    def tokens_offset(self) -> int:
        return self.header_bytes

    @property
    def states_offset(self) -> int:
        return self.header_bytes + 8 * self.rows

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.states_offset + self.rows * self.row_bytes

    def row_offset(self, row: int) -> int:
        """Where row `row` of `hidden_states` begins."""
        return self.states_offset + row * self.row_bytes

    def header(self, metadata: dict[str, str]) -> bytes:
        """The header area with `metadata`; raises ValueError if that is too long for the area."""
        tensors = [
            TensorSpec(TOKENS, "I64", (self.rows,)),
            TensorSpec(STATES, self.dtype, (self.rows, self.slots, self.hidden)),
        ]
        return header.write(tensors, metadata, area=self.header_bytes)
