"""Follows a run from an attached laptop: moves records between hosts, and tells when the run is over for a host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hosts.commands.moves import Mover
from hosts.inventory.model import Host
from remote.shared.messages.extract import RunStatus
from remote.shared.supervised import ATTENTION_SECONDS
from remote.shared.supervised.threads import Thread

POLL_SECONDS = 3.0


class Attendant:
    """Reads a run's status repeatedly, on a thread of its own, and moves its records."""

    def __init__(self, mover: Mover, on_busy: Callable[[bool], None] = lambda _: None) -> None:
        self._mover, self._on_busy = mover, on_busy
        self._over = False
        self._wanted = threading.Event()
        """Set while a caller waits for the next reading."""
        self._looked = threading.Condition()
        self._looks = 0
        self._at_work: set[str] = set()
        self._thread = Thread(self._run, "the moves between hosts", self._ended)

    def goes_on(self, host: Host) -> bool:
        """Wait until a host whose process has ended works again. Return False once no host works any more."""
        with self._looked:
            enough = self._looks + 2  # the present reading may have begun before the process ended
            while self._looks < enough or (self._at_work and host.name not in self._at_work):
                if not self._thread.alive:
                    return False
                if self._looks < enough:
                    self._wanted.set()
                self._looked.wait(ATTENTION_SECONDS)
            return host.name in self._at_work

    def close(self) -> None:
        """Return when the present step is made; raises the error that ended the readings."""
        self._over = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over:
            self._wanted.clear()
            self._on_busy(True)
            try:
                told = self._step()
            finally:
                self._on_busy(False)
            with self._looked:
                self._at_work = {name for name, status in told.items() if status.alive}
                self._looks += 1
                self._looked.notify_all()
            self._wanted.wait(POLL_SECONDS)

    def _step(self) -> dict[str, RunStatus]:
        """Read the run's status, make the steps that are due, and return the status after them."""
        told = self._mover.ask()
        return self._mover.ask() if self._mover.step(told) else told

    def _ended(self, _: BaseException) -> None:
        with self._looked:
            self._looked.notify_all()


@contextmanager
def attended(mover: Mover, on_busy: Callable[[bool], None] = lambda _: None) -> Iterator[Attendant]:
    """Move a run's records while the block lasts."""
    attendant = Attendant(mover, on_busy)
    yield attendant
    attendant.close()  # after an exception nobody waits for the thread, whose connections are closed
