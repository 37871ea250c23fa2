"""What the stand-in server answers: the same ids for the same prompt, as a greedy model does."""

from __future__ import annotations

import numpy as np
import xxhash

LETTERS = b" abcdefghijklmnopqrstuvwxyz.,\n"
CLOSING = 12
"""One id in so many ends the answer."""


def answer_of(tokens: list[int], most: int, end: int, *, thinking: bool = False) -> tuple[list[int], str]:
    """The ids that are sampled after `tokens`, and why the answer ends."""
    said: list[int] = ids_of(b"<think>\nhm\n</think>\n\n") if thinking else []
    while len(said) < most:
        draw = xxhash.xxh3_64_intdigest(np.array([*tokens, *said], "<i8").data)
        if len(said) > 1 and draw % CLOSING == 0:
            return [*said, end], "stop"
        said.append(_id(draw))
    return said, "length"


def _id(draw: int) -> int:
    """The byte-level tokenizer's id of a letter: its place among the bytes' symbols in order."""
    return IDS[(draw >> 8) % len(LETTERS)]


def ids_of(text: bytes) -> list[int]:
    """The byte-level tokenizer's ids of ASCII text: printable bytes come first in its vocabulary, then the others."""
    return [byte - 33 if byte > 32 else 188 + byte for byte in text]


IDS = ids_of(LETTERS)
