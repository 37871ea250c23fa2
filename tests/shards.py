"""Shards for tests: whole safetensors files of any size in bytes that fit an identity, with noise for values."""

from __future__ import annotations

import json
import os

from tests.identities import run_identity

IDENTITY = run_identity(boundaries=(1, 3, 6, 8), hidden_size=512)
ROW_BYTES = 8 + 4 * 512 * 2
"""Of a record of `IDENTITY`: a token id and its states."""
_HEADER_BYTES = 320
SMALLEST = 8 + _HEADER_BYTES + ROW_BYTES


def rows_in(size: int) -> int:
    """Rows of the shard that `shard(size)` makes."""
    return (size - 8 - _HEADER_BYTES) // ROW_BYTES


def shard(size: int) -> bytes:
    """Return exactly `size` bytes, at least `SMALLEST`, that are a record of `IDENTITY`."""
    rows = rows_in(size)
    assert rows > 0, f"{size} bytes are too few: {SMALLEST} are needed"
    return shard_of(rows, os.urandom(rows * (ROW_BYTES - 8)), size)


def shard_of(rows: int, states: bytes, size: int = 0) -> bytes:
    """Return a record of `IDENTITY` with these states (BF16), its header padded to make `size` bytes."""
    tokens = 8 * rows
    entries = {
        "__metadata__": IDENTITY.marks,
        "token_ids": {"dtype": "I64", "shape": [rows], "data_offsets": [0, tokens]},
        "hidden_states": {"dtype": "BF16", "shape": [rows, 4, 512], "data_offsets": [tokens, tokens + len(states)]},
    }
    text = json.dumps(entries).encode().ljust(max(_HEADER_BYTES, size - 8 - tokens - len(states)))
    return len(text).to_bytes(8, "little") + text + bytes(tokens) + states


def rows_of(content: bytes) -> int:
    """Return the number of rows in a shard's own header."""
    length = int.from_bytes(content[:8], "little")
    return int(json.loads(content[8 : 8 + length])["hidden_states"]["shape"][0])
