"""Notifications from the host itself, so that they arrive while no laptop is awake.

Runs in the recorder. Each is sent until the webhook takes it (or for a day), by one thread, so that a webhook that
hangs holds up nothing else; what has not been sent is kept on disk, readable by this user alone.
"""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import Future

from pydantic import Field

from remote.shared import webhook
from remote.shared.messages.envelope import Message
from remote.shared.messages.history import Event, NotifySettings, Settings
from remote.shared.supervised.threads import Pool

TOLD = ("failed", "ready", "restarted", "finished", "stalled", "disk-low", "parity-failed", "idle-stopped", "gap")
"""Kinds of events that people are told of."""
AGAIN_SECONDS = 600.0
"""Of one subject, the same kind is told no more often: what comes in between is counted."""
RETRY_FIRST_SECONDS, RETRY_CAP_SECONDS = 5.0, 300.0
GIVE_UP_SECONDS = 86_400.0
MOST_WAITING = 100
MOST_TOLD = 500


class Telling(Message):
    """A notification that has not been delivered."""

    id: str
    """Receivers can tell by it a notification that comes twice: sent, and the recorder killed before it noted that."""
    event: Event
    host: str
    tries: int = 0
    next_at: float = 0.0
    problem: str = ""

    def document(self) -> dict[str, object]:
        """What a webhook gets; the fields of `inv extract --notify` on the laptop, and the id."""
        event = self.event
        return {
            "id": self.id, "event": event.kind, "host": self.host, "subject": event.subject,
            "message": event.text, "at": event.at,
        }  # fmt: skip


class Outbox(Message):
    """What is still to be sent, and what was told lately."""

    waiting: list[Telling] = Field(default_factory=list)
    told: dict[str, float] = Field(default_factory=dict)
    """Subject and kind, with the time."""
    kept_back: dict[str, int] = Field(default_factory=dict)
    """How often the same came again since then."""


class Teller:
    """Sends what is in the outbox, one notification at a time."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self._pool = Pool(1, "notifications")
        self._sending: tuple[Telling, Future[None]] | None = None

    def add(self, events: list[Event], settings: Settings) -> None:
        """Queue the events that people want to hear of; a repetition within `AGAIN_SECONDS` is only counted."""
        for event in events:
            if settings.notify is None or not _wanted(event, settings):
                continue
            what = f"{event.subject} {event.kind}"
            last = self.outbox.told.get(what, 0.0)
            if 0 <= event.at - last < AGAIN_SECONDS:
                self.outbox.kept_back[what] = self.outbox.kept_back.get(what, 0) + 1
                continue
            again = self.outbox.kept_back.pop(what, 0)
            text = f"{event.text} ({again} more times since it was told last.)" if again else event.text
            self.outbox.told[what] = event.at
            name = hashlib.blake2b(f"{settings.host} {what} {event.at}".encode(), digest_size=8).hexdigest()
            told = event.model_copy(update={"text": text})
            self.outbox.waiting.append(Telling(id=name, event=told, host=settings.host))
        del self.outbox.waiting[:-MOST_WAITING]
        for old in list(self.outbox.told)[:-MOST_TOLD]:
            del self.outbox.told[old]

    def work(self, settings: NotifySettings | None, now: float) -> list[Event]:
        """Take in what the last try came to and begin the next one; returns events about what could not be told."""
        lost: list[Event] = []
        if self._sending is not None and self._sending[1].done():
            lost = self._took(*self._sending, now)
            self._sending = None
        if self._sending is None and settings is not None:
            due = next((one for one in self.outbox.waiting if one.next_at <= now), None)
            if due is not None:
                job = self._pool.submit(webhook.post, settings.webhook, settings.form, due.document())
                self._sending = (due, job)
        return lost

    @property
    def busy(self) -> bool:
        """Whether something is being sent or waits to be."""
        return bool(self.outbox.waiting)

    def close(self) -> None:
        """End the thread; one that hangs in a webhook is left to die with the process."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _took(self, telling: Telling, job: Future[None], now: float) -> list[Event]:
        error = job.exception()
        if error is None:
            self.outbox.waiting.remove(telling)
            return []
        telling.tries += 1
        telling.problem = str(error) if isinstance(error, webhook.WebhookError) else type(error).__name__
        telling.next_at = now + min(RETRY_CAP_SECONDS, RETRY_FIRST_SECONDS * 2 ** min(telling.tries - 1, 10))
        given_up = now - telling.event.at > GIVE_UP_SECONDS
        if given_up:
            self.outbox.waiting.remove(telling)
        if telling.tries != 1 and not given_up:
            return []
        outcome = "it was given up after a day" if given_up else "it is tried again until it is taken"
        text = f"The notification of {telling.event.kind!r} could not be delivered; {outcome}. {telling.problem}"
        return [Event(at=time.time(), kind="untold", subject=telling.event.subject, text=text)]


def _wanted(event: Event, settings: Settings) -> bool:
    kind, _, name = event.subject.partition(" ")
    return event.kind in TOLD and (kind == "server" or name in settings.runs)
