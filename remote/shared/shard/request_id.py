"""The SGLang request id of a captured record. Standard library only: the extractor formats it, capture parses it.

The id tells capture two things before the first row arrives: that the request is Roost's (warm-up requests, health
probes and other users of the server have other ids and leave no trace), and how many rows complete it (a chunked
prompt arrives over several forward passes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CANARY = "canary"
"""Stands for the index in the id of a canary: a prompt whose states an independent hook also captures."""

_FORM = re.compile(r"roost\.([A-Za-z0-9]{1,32})\.(canary|0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,8})\.([1-9][0-9]{0,8})")
_NONCE = re.compile(r"[A-Za-z0-9]{1,32}")


@dataclass(frozen=True)
class RequestId:
    """`roost.<nonce>.<index>.<attempt>.<rows>`, unique for the life of a server.

    `nonce` identifies the session of an extractor, `index` is the record's global index (None for a canary), and `rows`
    is the number of tokens in the prompt.
    """

    nonce: str
    index: int | None
    attempt: int
    rows: int

    def __post_init__(self) -> None:
        if not _NONCE.fullmatch(self.nonce):
            raise ValueError(f"a request id's nonce is 1 to 32 letters and digits, and {self.nonce!r} is not")
        if (self.index or 0) < 0 or self.attempt < 0 or self.rows < 1:
            raise ValueError(f"a request id needs index >= 0, attempt >= 0 and rows >= 1: {self!r}")

    @property
    def is_canary(self) -> bool:
        return self.index is None

    def __str__(self) -> str:
        index = CANARY if self.index is None else str(self.index)
        return f"roost.{self.nonce}.{index}.{self.attempt}.{self.rows}"

    @classmethod
    def parse(cls, rid: object) -> RequestId | None:
        """Return the parts of `rid`, or None if it is not Roost's."""
        found = _FORM.fullmatch(rid) if isinstance(rid, str) else None
        if found is None:
            return None
        nonce, index, attempt, rows = found.groups()
        return cls(nonce, None if index == CANARY else int(index), int(attempt), int(rows))
