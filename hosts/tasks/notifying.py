"""`--notify`: send a notification for each host's outcome as soon as it is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from hosts.console.output import Output
from hosts.errors import HostError
from hosts.fleet import Fleet, Outcome
from hosts.notify import NotifyError, check_notify, event_of, notify

NOTIFY = {"notify": "tell the inventory's `notify` command or webhook when a host is ready, failed or finished"}


class Teller:
    """Sends one notification for each outcome; a notification that fails is printed as a note."""

    def __init__(
        self,
        fleet: Fleet,
        output: Output,
        subject: str,
        done: Literal["ready", "finished"],
        line: Callable[[Any], str],
        failed: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        """Raises UsageError if the inventory has no `notify` for one of the hosts."""
        check_notify(fleet)
        self._output = output
        self._subject = subject
        self._done = done
        self._line = line
        self._failed = failed

    def __call__(self, outcome: Outcome[Any]) -> None:
        """Send the notification for one outcome."""
        error, message = outcome.error, ""
        if outcome.value is not None:
            message = self._line(outcome.value)
            error = HostError(message) if self._failed(outcome.value) else None
        try:
            notify(outcome.host, event_of(outcome.host, self._subject, error, self._done, message))
        except NotifyError as error:
            self._output.note(f"{outcome.host.name}: {error}")
