"""Sends notifications from the host itself, so that they arrive while no laptop is awake.

Runs in the recorder. A notification is sent again until the webhook accepts it, at most for a day. One thread sends, so
that a webhook that hangs does not delay the recorder. Unsent notifications are kept on disk, readable only by this
user.
"""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import Future

from pydantic import Field

from remote.shared import webhook
from remote.shared.messages.envelope import Message
from remote.shared.messages.history import Event, NotifySettings, Settings
from remote.shared.supervised.pools import Pool

TOLD = ("failed", "ready", "restarted", "finished", "stalled", "disk-low", "parity-failed", "idle-stopped", "gap")
"""Kinds of events that cause a notification."""
AGAIN_SECONDS = 600.0
"""Seconds in which only one notification of the same kind and subject is sent. Repetitions are counted."""
RETRY_FIRST_SECONDS, RETRY_CAP_SECONDS = 5.0, 300.0
GIVE_UP_SECONDS = 86_400.0
MOST_WAITING = 100
MOST_TOLD = 500


class Telling(Message):
    """A notification that has not been delivered."""

    id: str
    """An id by which receivers recognise a repetition: a recorder that is killed after sending may send again."""
    event: Event
    host: str
    tries: int = 0
    next_at: float = 0.0
    problem: str = ""

    def document(self) -> dict[str, object]:
        """Return the document for a webhook: the fields of `inv extract --notify` on the laptop, and the id."""
        event = self.event
        return {
            "id": self.id, "event": event.kind, "host": self.host, "subject": event.subject,
            "message": event.text, "at": event.at,
        }  # fmt: skip


class Outbox(Message):
    """The notifications to send, and the recent ones."""

    waiting: list[Telling] = Field(default_factory=list)
    told: dict[str, float] = Field(default_factory=dict)
    """The time of the last notification for each subject and kind."""
    kept_back: dict[str, int] = Field(default_factory=dict)
    """The number of repetitions since then, for each subject and kind."""


class Teller:
    """Sends the outbox, one notification at a time."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self._pool = Pool(1, "notifications")
        self._sending: tuple[Telling, Future[None]] | None = None

    def add(self, events: list[Event], settings: Settings) -> None:
        """Queue notifications for these events. A repetition within `AGAIN_SECONDS` is only counted."""
        for event in events:
            if settings.notify is None or not _wanted(event, settings):
                continue
            what = f"{event.subject} {event.kind}"
            last = self.outbox.told.get(what, 0.0)
            if 0 <= event.at - last < AGAIN_SECONDS:
                self.outbox.kept_back[what] = self.outbox.kept_back.get(what, 0) + 1
                continue
            again = self.outbox.kept_back.pop(what, 0)
            text = f"{event.text} ({again} more times since the last notification.)" if again else event.text
            self.outbox.told[what] = event.at
            name = hashlib.blake2b(f"{settings.host} {what} {event.at}".encode(), digest_size=8).hexdigest()
            told = event.model_copy(update={"text": text})
            self.outbox.waiting.append(Telling(id=name, event=told, host=settings.host))
        del self.outbox.waiting[:-MOST_WAITING]
        for old in list(self.outbox.told)[:-MOST_TOLD]:
            del self.outbox.told[old]

    def work(self, settings: NotifySettings | None, now: float) -> list[Event]:
        """Note the result of the last attempt and begin the next; return events about notifications that failed."""
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
        """Return whether a notification is being sent or waits."""
        return bool(self.outbox.waiting)

    def close(self) -> None:
        """End the thread. A thread that hangs in a webhook ends with the process."""
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
        outcome = "it was dropped after a day" if given_up else "it is sent again until the webhook accepts it"
        text = f"The notification of {telling.event.kind!r} could not be delivered; {outcome}. {telling.problem}"
        return [Event(at=time.time(), kind="untold", subject=telling.event.subject, text=text)]


def _wanted(event: Event, settings: Settings) -> bool:
    kind, _, name = event.subject.partition(" ")
    return event.kind in TOLD and (kind == "server" or name in settings.runs)
