"""Runs on the host for `remote.logs`: the pattern of `--grep`, which can never hold the verb.

A regular expression of a few characters (`(a|aa)+$`) can search one line for longer than anybody waits, and Python's
own engine cannot be interrupted meanwhile. `regex`, which every SGLang install has, stops at a deadline.
"""

from __future__ import annotations

import re
from typing import Any

from remote.shared.errors import HostError, UsageError

LINE_SECONDS = 1.0
"""A line has at most 64 KiB, and an ordinary pattern searches that in a thousandth of this."""


_ACCESS = re.compile(
    r'INFO:\s+127\.0\.0\.1:\d+ - "(GET|POST) /(health|health_generate|ready|metrics|generate|flush_cache|abort_request'
    r'|get_model_info|model_info|get_server_info|server_info)(\?[^" ]*)? HTTP/1\.1" 200'
)
"""uvicorn's line for a request that health probes and Roost itself send from this host, and that was answered well."""


class Pattern:
    """Which lines of a log are wanted: those that match `text`, without access lines unless they are asked for."""

    def __init__(self, text: str, *, access: bool = True) -> None:
        """Raises UsageError for text that is no regular expression, HostError on a host without `regex`."""
        self._access = access
        self._text = text
        self._compiled: Any = _compiled(text) if text else None

    def search(self, line: str) -> bool:
        """Whether `line` is wanted; raises UsageError for a pattern that needs longer than LINE_SECONDS for it."""
        if not self._access and _ACCESS.search(line):
            return False
        try:
            return self._compiled is None or self._compiled.search(line, timeout=LINE_SECONDS) is not None
        except TimeoutError as error:
            raise UsageError(
                f"--grep {self._text!r} was still searching one line after {LINE_SECONDS:g} s.",
                remedy="Repetitions inside repetitions, as in (a|aa)+, do that: write it without.",
            ) from error


def _compiled(text: str) -> Any:
    try:
        import regex
    except ImportError as error:
        raise HostError(
            "The host's Python has no `regex`, which --grep needs.",
            remedy="Install it there (`pip install regex`), or leave --grep out and search on this side.",
        ) from error
    try:
        return regex.compile(text)
    except (regex.error, OverflowError, RecursionError) as error:
        raise UsageError(f"--grep {text!r} is no regular expression: {error}.") from error
