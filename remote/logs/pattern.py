"""Runs on the host for `remote.logs`: the pattern of `--grep`, whose search has a deadline.

A regular expression of a few characters, such as `(a|aa)+$`, can search one line for hours, and Python's own engine
cannot be interrupted. `regex`, which every SGLang install has, stops at a deadline.
"""

from __future__ import annotations

import re
from typing import Any

from remote.shared.errors import HostError, UsageError

LINE_SECONDS = 1.0
"""A line has at most 64 KiB, which an ordinary pattern searches in a thousandth of this time."""


_ACCESS = re.compile(
    r'INFO:\s+127\.0\.0\.1:\d+ - "(GET|POST) /(health|health_generate|ready|metrics|generate|flush_cache|abort_request'
    r'|get_model_info|model_info|get_server_info|server_info)(\?[^" ]*)? HTTP/1\.1" 200'
)
"""uvicorn's line for a successful request from this host by a health probe or by Roost itself."""


class Pattern:
    """Selects the lines of a log that match `text`; `access` tells whether access lines are included."""

    def __init__(self, text: str, *, access: bool = True) -> None:
        """Raises UsageError if `text` is not a regular expression, HostError on a host without `regex`."""
        self._access = access
        self._text = text
        self._compiled: Any = _compiled(text) if text else None

    def search(self, line: str) -> bool:
        """Return whether `line` is selected; raises UsageError if the search takes longer than LINE_SECONDS."""
        if not self._access and _ACCESS.search(line):
            return False
        try:
            return self._compiled is None or self._compiled.search(line, timeout=LINE_SECONDS) is not None
        except TimeoutError as error:
            raise UsageError(
                f"--grep {self._text!r} was still searching one line after {LINE_SECONDS:g} s.",
                remedy="Repetitions inside repetitions, as in (a|aa)+, take that long: write the pattern without them.",
            ) from error


def _compiled(text: str) -> Any:
    try:
        import regex
    except ImportError as error:
        raise HostError(
            "The host's Python lacks the package `regex`, which --grep needs.",
            remedy="Install it there (`pip install regex`), or search the output on this side instead.",
        ) from error
    try:
        return regex.compile(text)
    except (regex.error, OverflowError, RecursionError) as error:
        raise UsageError(f"--grep {text!r} is not a regular expression: {error}.") from error
