"""The far end of a pull among the processes of this machine."""

from __future__ import annotations

from collections.abc import Iterable

_WORDS = "The far end of a pull"
_FORMS = (_WORDS, _WORDS.encode().hex())
"""As the sender's source travels: as it is, or in hex digits."""


def is_sender(argv: Iterable[str]) -> bool:
    """Whether this command line is a sender's."""
    return any(form in part for part in argv for form in _FORMS)
