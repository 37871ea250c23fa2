"""The option `--notify`, and the hosts' recorders, which keep histories and notify while no laptop is awake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from hosts.console.output import Output
from hosts.errors import AuthenticationError, HostError, HostKeyError, HostUnreachableError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.notify import NotifyError, check_notify, event_of, notify
from remote.shared.messages.history import NotifySettings, RecordRequest, RecordResult

RECORD_DEADLINE_SECONDS = 60.0
UNREACHED = (HostUnreachableError, HostKeyError, AuthenticationError)
"""Errors that were printed when they happened."""
NOTIFY = {"notify": "notify the inventory's `notify` command or webhook of events, even after this command has ended"}


class Teller:
    """Sends a notification for each outcome; a failed notification is printed as a note."""

    def __init__(
        self,
        fleet: Fleet,
        output: Output,
        subject: str,
        done: Literal["ready", "finished"],
        line: Callable[[Any], str],
        failed: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        """Raises UsageError if the inventory has no `notify` for a host of the fleet."""
        check_notify(fleet)
        self._output = output
        self._subject = subject
        self._done = done
        self._line = line
        self._failed = failed
        self.host_tells: set[str] = set()
        """The hosts that notify the webhook by themselves."""

    def __call__(self, outcome: Outcome[Any]) -> None:
        """Send the notification for one outcome."""
        error, message = outcome.error, ""
        if outcome.value is not None:
            message = self._line(outcome.value)
            error = HostError(message) if self._failed(outcome.value) else None
        try:
            event = event_of(outcome.host, self._subject, error, self._done, message)
            tells = outcome.host.name in self.host_tells and outcome.value is not None
            notify(outcome.host, event, host_tells=tells)
        except NotifyError as error:
            self._output.note(f"{outcome.host.name}: {error}")


def keep_watch(fleet: Fleet, output: Output, teller: Teller | None, run: str = "") -> None:
    """Start every host's recorder; with a `teller`, the hosts notify of `run` and of servers by themselves.

    A recorder that does not start is only a note, because runs and servers work without it.
    """
    for outcome in record(fleet, notify=teller is not None, run=run):
        name = outcome.host.name
        if outcome.error is not None:
            if not isinstance(outcome.error, UNREACHED):
                output.note(f"{name}: no history is kept: {outcome.error}")
        elif outcome.result.notify_problem:
            output.note(f"{name}: {outcome.result.notify_problem} This laptop notifies instead, while a command runs.")
        elif teller is not None and outcome.host.notify.sent_by == "host":
            teller.host_tells.add(name)


def record(fleet: Fleet, *, notify: bool, run: str = "") -> list[Outcome[RecordResult]]:
    """Start each host's recorder, or give these settings to a running one; with `notify`, it notifies of `run`."""

    def request(host: Host) -> RecordRequest:
        return RecordRequest(
            host=host.name,
            notify=_settings(host) if notify else None,
            run=run,
            min_free_bytes=int(host.min_free),
            stall_seconds=host.notify.stalled_after,
            idle_stop_seconds=host.idle_stop,
        )

    return fleet.call("record", request, RecordResult, deadline=RECORD_DEADLINE_SECONDS)


def _settings(host: Host) -> NotifySettings | None:
    if host.notify.webhook is None or host.notify.sent_by == "laptop":
        return None
    return NotifySettings(webhook=host.notify.webhook, form=host.notify.posts_as)
