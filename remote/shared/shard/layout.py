"""The bytes of a dump, which are the bytes of the shard: safetensors with a header area of fixed size. No torch.

`token_ids` I64 [rows] comes first, `hidden_states` [rows, slots, hidden] after it. The header area is padded, so the
place of every row is known before the metadata is, and rows are written where they stay.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

CONVENTION = "boundary: state after k blocks"
_UNIT = 4096
_BASE = 2048
_PER_SLOT = 96
_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


@dataclass(frozen=True)
class Layout:
    """Sizes and offsets (bytes) of one dump's file."""

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
        return self.slots * self.hidden * _ITEM_BYTES[self.dtype]

    @property
    def tokens_offset(self) -> int:
        return self.header_bytes

    @property
    def states_offset(self) -> int:
        return self.header_bytes + 8 * self.rows

    @property
    def size(self) -> int:
        return self.states_offset + self.rows * self.row_bytes

    def row_offset(self, row: int) -> int:
        """Where row `row` of `hidden_states` begins."""
        return self.states_offset + row * self.row_bytes

    def header(self, metadata: dict[str, str]) -> bytes:
        """The header area with `metadata`; raises ValueError where it is too long for the area."""
        tokens = 8 * self.rows
        entries = {
            "__metadata__": metadata,
            "token_ids": {"dtype": "I64", "shape": [self.rows], "data_offsets": [0, tokens]},
            "hidden_states": {
                "dtype": self.dtype,
                "shape": [self.rows, self.slots, self.hidden],
                "data_offsets": [tokens, tokens + self.rows * self.row_bytes],
            },
        }
        return _area(entries, self.header_bytes - 8)


def with_metadata(head: bytes, more: dict[str, str]) -> bytes:
    """A file's header area (its length in 8 bytes, JSON, padding) with further metadata, in the same number of bytes.

    Raises ValueError if it does not fit.
    """
    entries = json.loads(head[8:])
    entries["__metadata__"] = {**entries.get("__metadata__", {}), **more}
    return _area(entries, len(head) - 8)


def _area(entries: dict[str, object], room: int) -> bytes:
    text = json.dumps(entries, separators=(",", ":")).encode()
    if len(text) > room:
        raise ValueError(f"the header takes {len(text)} bytes, and its area holds {room}")
    return room.to_bytes(8, "little") + text.ljust(room)
