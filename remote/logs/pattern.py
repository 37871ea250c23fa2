"""Runs on the host for `remote.logs`: the pattern of `--grep`, which can never hold the verb.

A regular expression of a few characters (`(a|aa)+$`) can search one line for longer than anybody waits, and Python's
own engine cannot be interrupted meanwhile. `regex`, which every SGLang install has, stops at a deadline.
"""

from __future__ import annotations

from typing import Any

from remote.shared.errors import HostError, UsageError

LINE_SECONDS = 1.0
"""A line has at most 64 KiB, and an ordinary pattern searches that in a thousandth of this."""


class Pattern:
    """A pattern that lines are searched for; `Pattern("")` is none, use None instead."""

    def __init__(self, text: str) -> None:
        """Raises UsageError for text that is no regular expression, HostError on a host without `regex`."""
        try:
            import regex
        except ImportError as error:
            raise HostError(
                "The host's Python has no `regex`, which --grep needs.",
                remedy="Install it there (`pip install regex`), or leave --grep out and search on this side.",
            ) from error
        self._text = text
        try:
            self._compiled: Any = regex.compile(text)
        except (regex.error, OverflowError, RecursionError) as error:
            raise UsageError(f"--grep {text!r} is no regular expression: {error}.") from error

    def search(self, line: str) -> bool:
        """Whether `line` matches; raises UsageError for a pattern that needs longer than LINE_SECONDS for it."""
        try:
            return self._compiled.search(line, timeout=LINE_SECONDS) is not None
        except TimeoutError as error:
            raise UsageError(
                f"--grep {self._text!r} was still searching one line after {LINE_SECONDS:g} s.",
                remedy="Repetitions inside repetitions, as in (a|aa)+, do that: write it without.",
            ) from error
