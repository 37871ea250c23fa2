"""Finds faults of an answer in its ids and its text. Pure."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from remote.shared.messages.run import Answering, Mark

LONGEST_PERIOD = 64
"""Tokens of the longest n-gram whose repetition is searched."""
LOOP_TOKENS = 64
LOOP_TIMES = 4
"""A loop repeats its n-gram at least this often, and over at least this many tokens."""
_REFUSAL = re.compile(
    r"^\W*(i'?m (very |really |so )?sorry|i am sorry|sorry|i apologi[sz]e|unfortunately|as an ai( language model)?)?"
    r"[\s,.;:—-]*(but |however,? )?"
    r"i ?('m|am)? ?(can'?t|cannot|can not|unable to|not able to|won'?t|will not|must decline|have to decline)"
    r"( to)? (help|assist|provide|comply|fulfil|answer|do that|create|generate|support|engage|write|share|discuss)",
    re.IGNORECASE,
)
"""A refusal in English at the beginning of an answer."""


def marks_of(ids: NDArray[np.int32], text: str, finish: str) -> list[Mark]:
    """Return the faults of one answer."""
    answer = text.rpartition("</think>")[2]
    found: list[Mark] = ["length"] if finish == "length" else []
    if not answer.strip():
        found.append("empty")
    if repeats(ids):
        found.append("repeating")
    if _REFUSAL.match(answer.strip()[:300].replace("\u2019", "'")):
        found.append("refused")
    return found


def repeats(ids: NDArray[np.int32]) -> bool:
    """Return whether an n-gram repeats itself as a loop anywhere."""
    for period in range(1, min(LONGEST_PERIOD, len(ids) // LOOP_TIMES) + 1):
        wanted = max(LOOP_TOKENS, LOOP_TIMES * period) - period
        if wanted <= len(ids) - period and _longest_run(ids[period:] == ids[:-period]) >= wanted:
            return True
    return False


def judged(marks: list[Mark], settings: Answering) -> tuple[list[Mark], Mark | None]:
    """Return the marks of a record, and the mark for which the record is dropped, or None."""
    fatal = {*settings.drop, *(["length"] if settings.too_long == "drop" else [])}
    kept = [mark for mark in marks if mark != "length" or settings.too_long != "keep"]
    return kept, next((mark for mark in kept if mark in fatal), None)


def _longest_run(same: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0
