"""Sends notifications: a server is ready or failed, or a run finished.

Runs on the laptop, called by tasks that were given `--notify`. Runs the inventory's `notify.command` (an argv, no
shell, the event's JSON on stdin). `notify.webhook` is told by the hosts themselves (`remote/history`), and from here
only of what no host can tell: that it cannot be reached. A notification never fails the task.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from typing import Literal

from pydantic import BaseModel

from hosts.errors import RoostError, UsageError
from hosts.fleet import Fleet
from hosts.inventory.model import Host
from remote.shared.redact import HIDDEN, without_credentials
from remote.shared.webhook import WebhookError, post

COMMAND_SECONDS = 30.0
LONG_WORD = 8
"""Characters from which on a word of the command may be a token."""


class Event(BaseModel):
    """The event as the command reads it on stdin and the webhook receives it."""

    event: Literal["ready", "failed", "finished"]
    host: str
    subject: str
    """`server main` or `run kimi-1`."""
    message: str
    at: float
    """Unix time in seconds."""


class NotifyError(RoostError):
    """The notification could not be delivered."""

    kind = "notify"


def check_notify(fleet: Fleet) -> None:
    """Raise UsageError if a host has no `notify` setting, or a `notify.command` that cannot be split."""
    for host in fleet.hosts:
        if host.notify.command is None and host.notify.webhook is None:
            raise UsageError(
                f"{host.name} has no `notify` in the inventory.",
                remedy="Give it a `command` or a `webhook`, or leave --notify out.",
            )
        if host.notify.command is not None:
            _argv(host.notify.command)


def event_of(
    host: Host, subject: str, error: RoostError | None, done: Literal["ready", "finished"], message: str
) -> Event:
    """Return the event for one host's outcome: `done` with `message`, or `failed` with the error's message."""
    if error is not None:
        return Event(event="failed", host=host.name, subject=subject, message=str(error), at=time.time())
    return Event(event=done, host=host.name, subject=subject, message=message, at=time.time())


def notify(host: Host, event: Event, *, host_tells: bool = False) -> None:
    """Deliver one event by the inventory's command and webhook; raises NotifyError for the first failure.

    With `host_tells`, the host itself sends the event to the webhook, so only the command is run.
    """
    if host.notify.command is not None:
        _run(host.notify.command, event)
    if host.notify.webhook is not None and not host_tells:
        try:
            post(host.notify.webhook, host.notify.posts_as, event.model_dump(mode="json"))
        except WebhookError as error:
            raise NotifyError(error.message) from error


def _argv(command: str) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"`notify.command` cannot be read: {error}.", remedy="Close its quotes.") from error
    if not argv:
        raise UsageError("`notify.command` is empty.")
    return argv


def _run(command: str, event: Event) -> None:
    try:
        ended = subprocess.run(
            _argv(command),
            input=event.model_dump_json(),
            text=True,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except OSError as error:
        program = without_credentials(str(error.filename or "it"))  # the other words may be secrets
        raise NotifyError(f"`notify.command` could not be run: {program}: {error.strerror}.") from error
    except subprocess.TimeoutExpired as error:
        raise NotifyError(f"`notify.command` did not end within {COMMAND_SECONDS:.0f} s.") from error
    if ended.returncode != 0:
        said = (ended.stderr.strip().splitlines() or ["no word"])[-1]
        raise NotifyError(f"`notify.command` ended with exit code {ended.returncode}: {_without(said, command)}.")


def _without(said: str, command: str) -> str:
    """Return the command's output without URLs' credentials and without the command's own longer words.

    A program that fails often repeats its arguments, and one of them may be a token.
    """
    for word in sorted(re.split(r"[\s='\"]+", command), key=len, reverse=True):
        if len(word) >= LONG_WORD and not word.startswith(("-", "/")):
            said = said.replace(word, HIDDEN)
    return without_credentials(said)
