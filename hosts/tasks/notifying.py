"""`--notify` for any task whose outcomes somebody waits for: each host's is told as it comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from hosts.console.output import Output
from hosts.errors import HostError
from hosts.fleet import Fleet, Outcome
from hosts.notify import NotifyError, check_notify, event_of, notify

NOTIFY = {"notify": "tell the inventory's `notify` command or webhook when a host is ready, failed or finished"}


class Teller:
    """Called with each host's outcome; a notification that fails becomes a note."""

    def __init__(
        self,
        fleet: Fleet,
        output: Output,
        subject: str,
        done: Literal["ready", "finished"],
        line: Callable[[Any], str],
        failed: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        """Raises UsageError where a host has nobody to tell, before anything is done."""
        check_notify(fleet)
        self._output = output
        self._subject = subject
        self._done = done
        self._line = line
        self._failed = failed

    def __call__(self, outcome: Outcome[Any]) -> None:
        """Tell one outcome."""
        error, message = outcome.error, ""
        if outcome.value is not None:
            message = self._line(outcome.value)
            error = HostError(message) if self._failed(outcome.value) else None
        try:
            notify(outcome.host, event_of(outcome.host, self._subject, error, self._done, message))
        except NotifyError as error:
            self._output.note(f"{outcome.host.name}: {error}")
