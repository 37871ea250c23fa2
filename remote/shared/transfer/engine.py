"""The engine of every pull: the records of one run come from their hosts to one destination.

Runs where the records land: in the laptop's process for a folder or a bucket, in the verb `fetch` for a folder on a
host. The caller runs `bring` on one thread for each host. A record that a host offers and the destination lacks is
claimed, streamed, hashed while it lands, delivered (fsync, rename, ledger) and, with `free`, freed on its host.
`books.py` has a record's states. The engine prints nothing; `tallies` has each host's progress.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from remote.shared.errors import HostError, RoostError, UsageError
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.transfer import HostTally, Store, Wish
from remote.shared.supervised import ATTENTION_SECONDS
from remote.shared.supervised.threads import DeadlineError, Thread
from remote.shared.transfer.books import Books
from remote.shared.transfer.bounds import Bounds
from remote.shared.transfer.delivery import Delivery
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.hostpull import HostPull
from remote.shared.transfer.lane import Way
from remote.shared.transfer.origin import Asked, Offer, Origin
from remote.shared.transfer.rate import RateLimit
from remote.shared.transfer.work import Pull
from remote.shared.words import counted

FOLLOW_SECONDS = 2.0
AT_WORK = ("running", "paused", "waiting")
QUIET_ROUNDS = 2
"""Rounds in a row without a working host that end a following pull, because records may be between two hosts."""
FREE_RECORDS = 200
"""The most records in one call that frees."""
FREE_TRIES = 4
"""Lost calls in a row after which a pull whose records have all come stops trying to free."""
LONGEST_BACKOFF_SECONDS = 30.0

Tallies = dict[str, HostTally]
"""By host name."""


class Engine:
    """One pull into one open destination; a context manager whose end stops everything that is under way."""

    def __init__(self, destination: Destination, wish: Wish, bounds: Bounds) -> None:
        self.tallies: Tallies = {}
        self.stop = threading.Event()
        self._at_work: set[str] = set()
        """Hosts whose extractors work, according to their last answer."""
        self._delivery = Delivery(destination, self.stop.set)
        self._pull = Pull(
            destination,
            wish,
            bounds,
            Books(destination, self.stop),
            self._delivery,
            RateLimit(wish.limits.bytes_per_second),
            self.stop,
        )

    def __enter__(self) -> Engine:
        self._delivery.__enter__()
        return self

    def __exit__(self, kind: object, *about: object) -> None:
        self.stop.set()
        self._delivery.__exit__(kind, *about)
        if self._delivery.error is not None and kind is None:
            raise self._delivery.error

    def enlist(self, names: list[str]) -> None:
        """Begin a tally for each host, in this order."""
        self.tallies |= {name: HostTally() for name in names}

    def bring(self, origin: Origin) -> HostTally:
        """Bring one host's records; with `follow`, until its run is complete. Raises RoostError if it ends early."""
        tally = self.tallies.setdefault(origin.source.name, HostTally())
        self._pull.books.open(origin.source.name)
        session = _Session(self._pull, origin, tally, self._at_work)
        try:
            with session.freeing():
                session.run(QUIET_ROUNDS if len(self.tallies) > 1 else 1)
        finally:
            self._at_work.discard(origin.source.name)
        return tally


def look(origin: Asked, destination: Destination | None) -> HostTally:
    """Count what a host offers and the destination (None if it does not exist yet) lacks. Transfers nothing."""
    tally = HostTally(looked_only=True)

    def count(row: ShardRow) -> None:
        tally.offered += 1
        if destination is not None and destination.has(row, origin.source.name):
            tally.present += 1
        else:
            tally.wanted_bytes += row.size_bytes

    tally.status = origin.offers(0, count).status
    return tally


class _Session:
    """One host's part of a pull: lists its records, brings them, and lists again."""

    def __init__(self, pull: Pull, origin: Origin, tally: HostTally, at_work: set[str]) -> None:
        self._pull = pull
        self._at_work = at_work
        self._origin = origin
        self._source = origin.source
        self._wish = pull.wish
        self._books = pull.books
        self._tally = tally
        self._over = threading.Event()
        self._given_up: set[tuple[int, str, Store]] = set()
        """Versions of records that were tried and refused."""
        self._codec = self._wish.limits.compress != "never"
        self._puller = HostPull(self._source.name, pull, tally)

    def run(self, quiet_rounds: int) -> None:
        """Run one round; with `follow`, rounds until `quiet_rounds` in a row were quiet."""
        if self._wish.follow:
            self._tally.share_records, self._tally.share_bytes = self._source.share_records, self._source.share_bytes
        cursor, quiet = 0, 0
        while not self._pull.stop.is_set():
            offer = self._listed(cursor)
            self._tally.status = offer.status
            if not cursor:
                self._begin_count()
            self._take_in(offer.rows)
            error = self._bring()
            if error is not None and not (self._wish.follow and isinstance(error, ConnectionError)):
                raise error
            quiet = quiet + 1 if self._is_quiet(offer) and error is None else 0
            if not self._wish.follow or quiet >= quiet_rounds:
                return
            cursor = offer.cursor if error is None else 0
            self._tally.waiting = _to_reach_again(error) if error is not None else ""
            self._pull.stop.wait(FOLLOW_SECONDS)

    def _is_quiet(self, offer: Offer) -> bool:
        """Return whether nothing is new and no host works; a working host's records could move to this host."""
        if offer.status in AT_WORK:
            self._at_work.add(self._source.name)
        else:
            self._at_work.discard(self._source.name)
        return not self._at_work and not offer.rows

    @contextmanager
    def freeing(self) -> Iterator[None]:
        """With `free`, tell the host of its durable records during the block, and of the last ones at its end.

        Raises the last call's error if records are left that the host could not be told of.
        """
        if not self._wish.free:
            yield
            return
        thread = Thread(self._free, f"free-{self._source.name}")
        try:
            yield
        except BaseException:
            self._over.set()
            with suppress(RoostError):
                _ended(thread)
            raise
        self._over.set()
        _ended(thread)
        if self._tally.not_durable:
            raise HostError(
                f"{counted(self._tally.not_durable, 'record was', 'records were')} not freed: "
                "the destination's file system cannot fsync.",
                remedy="Pull to a local disk; or check with inv verify, then remove the run with inv clean.",
            )

    def _free(self) -> None:
        lost = 0
        while not self._pull.stop.is_set():
            over = self._over.is_set()
            batch = self._books.to_free(self._source.name, FREE_RECORDS)
            if not batch:
                if over:
                    return
                self._books.wait()
                continue
            try:
                result = self._origin.free(batch)
            except RoostError:
                lost += 1
                if over and lost >= FREE_TRIES:
                    raise
                self._pause(min(2.0 ** (lost - 1), LONGEST_BACKOFF_SECONDS))
            else:
                lost = 0
                self._books.free(self._source.name, batch)
                self._tally.freed += result.records
                self._tally.freed_bytes += result.freed_bytes

    def _pause(self, seconds: float) -> None:
        """Wait between two tries, at most a second once the session is over."""
        if self._over.is_set():
            time.sleep(min(seconds, 1.0))
        else:
            self._over.wait(seconds)

    def _listed(self, after: int) -> Offer:
        """Return the host's offer; with `follow`, wait for a host that is lost or has not begun the run."""
        while True:
            try:
                offer = self._origin.offers(after)
                self._tally.waiting = ""
                return offer
            except RoostError as error:
                unbegun = error.kind == UsageError.kind and self._source.share_records > 0
                if not self._wish.follow or not (unbegun or isinstance(error, ConnectionError)):
                    raise
                self._tally.waiting = "for the run to begin there" if unbegun else _to_reach_again(error)
                if self._pull.stop.wait(FOLLOW_SECONDS):
                    raise

    def _begin_count(self) -> None:
        """Reset the counts of the offer, because the host's ledger is read from its beginning."""
        self._tally.offered = self._tally.present = self._tally.present_bytes = 0
        self._tally.wanted_bytes = self._tally.plain_bytes + self._tally.kept_bytes

    def _take_in(self, rows: list[ShardRow]) -> None:
        """Offer to the books the records that the destination lacks."""
        missing = []
        for row in rows:
            if _version(row) in self._given_up:
                continue
            self._tally.offered += 1
            if not self._is_here(row):
                missing.append(row)
                self._tally.wanted_bytes += row.size_bytes
            elif not self._books.delivered_now(row.index):
                self._tally.present += 1
                self._tally.present_bytes += row.size_bytes
        self._codec = self._codec or any(row.stored == "compressed" for row in missing)
        self._books.offer(self._source.name, missing)

    def _is_here(self, row: ShardRow) -> bool:
        """Return whether the record was delivered and is intact. It is read again before its host may free it."""
        destination = self._pull.destination
        known = destination.ledger.find(row.index) if destination.has(row, self._source.name) else None
        if known is None:
            return False
        freeable = self._wish.free and known.durable and known.xxh3 == row.xxh3
        unseen = not self._books.delivered_now(row.index)
        if unseen and (freeable or self._wish.check) and not destination.is_intact(known):
            self._tally.damaged.append(row.index)
            return False
        if freeable:
            self._books.found(self._source.name, row)
        return True

    def _bring(self) -> RoostError | None:
        """Bring the offered records; one that its host has changed meanwhile is brought as it is now."""
        while not self._pull.stop.is_set() and not self._books.is_fetched(self._source.name):
            source = self._source
            error = self._puller.bring(
                Way(source.codec_sender, source.root, source.payload, self._wish.limits.compress == "always")
                if self._codec
                else Way(source.sender, source.root)
            )
            failed = self._books.failed(source.name)
            self._given_up |= {_version(row) for row in failed.values()}
            if error is not None or not failed:
                return error
            now = self._listed(0).rows
            again = [row for row in now if row.index in failed and _version(row) != _version(failed[row.index])]
            for row in again:
                del self._tally.failed[row.index]
            self._codec = self._codec or any(row.stored == "compressed" for row in again)
            self._books.offer(source.name, again)
        return None


def _to_reach_again(error: RoostError) -> str:
    """Return what a following pull waits for; completes "waiting …"."""
    return f"to reach it again: {error.message}"


def _ended(thread: Thread) -> None:
    """Wait for a thread's end, however long its last call takes; raises its exception."""
    while thread.alive:
        with suppress(DeadlineError):
            thread.join(ATTENTION_SECONDS)
    thread.join()


def _version(row: ShardRow) -> tuple[int, str, Store]:
    """Return what identifies a record as its host has it now; it changes if the record is made again or compressed."""
    return row.index, row.xxh3, row.stored
