"""The state of every record of a pull, the host that has claimed it, and the disk space reserved for it.

`Books` alone owns claims and reserved space, for all hosts of one engine. A record that two hosts offer has a state for
each host but only one claim: the second host waits until the first one has delivered the record or given it up.
`docs/pull.md` shows the states as a table.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from remote.shared.errors import HostError
from remote.shared.messages.extract import Delivered, ShardRow
from remote.shared.transfer.destination import PACKED_SHARE, Destination

State = Literal["offered", "claimed", "landed", "durable", "freed", "refused"]
Event = Literal["claim", "find", "land", "deliver", "free", "refuse", "return"]

MOVES: dict[Event, tuple[State, State | None]] = {
    # event     from       to
    "claim": ("offered", "claimed"),
    "find": ("offered", "durable"),
    "land": ("claimed", "landed"),
    "deliver": ("landed", "durable"),
    "free": ("durable", "freed"),
    "refuse": ("claimed", "refused"),
    "return": ("claimed", None),
}
"""All transitions. None means that the record counts as not offered, so it may be offered again."""

WAIT_SECONDS = 0.5


@dataclass
class _Account:
    """One host's records."""

    states: dict[int, State] = field(default_factory=dict)
    """The states of the records on their way, by index. A record that has reached its last state is removed."""
    counts: Counter[State] = field(default_factory=Counter)
    queue: deque[ShardRow] = field(default_factory=deque)
    """Offered records, in the order in which they will be claimed."""
    held_up: dict[int, ShardRow] = field(default_factory=dict)
    """Offered records that another host has claimed."""
    to_free: deque[Delivered] = field(default_factory=deque)
    failed: dict[int, ShardRow] = field(default_factory=dict)


class Books:
    """Thread-safe. Indices are those of the dataset; sizes are bytes."""

    def __init__(self, destination: Destination, stop: threading.Event) -> None:
        self._destination = destination
        self._stop = stop
        self._changed = threading.Condition()
        self._accounts: dict[str, _Account] = {}
        self._claims: dict[int, str] = {}
        """The host that brings a record now, by index."""
        self._reserved: dict[int, float] = {}
        self._delivered: set[int] = set()
        """Records that this pull has delivered, from any host."""

    def open(self, host: str) -> None:
        """Begin a host's account."""
        self._accounts[host] = _Account()

    def offer(self, host: str, rows: Iterable[ShardRow]) -> None:
        """Accept records to be brought, and reserve room for them. Raises HostError if they do not fit."""
        account = self._accounts[host]
        with self._changed:
            new = [row for row in rows if row.index not in account.states]
            room = {row.index: self._room_of(row) for row in new if row.index not in self._reserved}
            self._refuse_too_much(sum(room.values()))
            self._reserved |= room
            for row in new:
                account.states[row.index] = "offered"
                account.counts["offered"] += 1
                account.queue.append(row)

    def found(self, host: str, row: ShardRow) -> None:
        """Note that an offered record was delivered earlier and is intact, so its host may free it."""
        account = self._accounts[host]
        with self._changed:
            if row.index not in account.states:
                account.states[row.index] = "offered"
                account.counts["offered"] += 1
                self._find(host, row, freeable=True)

    def claim(self, host: str) -> ShardRow | None:
        """Claim and return the host's next record; None if no record can be claimed now."""
        account = self._accounts[host]
        with self._changed:
            while account.queue:
                row = account.queue.popleft()
                if row.index in self._delivered and self._destination.has(row, host):
                    known = self._destination.ledger.find(row.index)
                    self._find(host, row, freeable=known is not None and known.durable and known.xxh3 == row.xxh3)
                elif row.index in self._claims:
                    account.held_up[row.index] = row
                else:
                    self._claims[row.index] = host
                    self._reserved.setdefault(row.index, self._room_of(row))
                    self._move(account, row.index, "claim")
                    return row
            return None

    def land(self, host: str, row: ShardRow) -> None:
        """Note that every byte of the record is here and right, before the record goes to the delivery."""
        with self._changed:
            self._move(self._accounts[host], row.index, "land")

    def deliver(self, host: str, row: ShardRow, *, durable: bool) -> None:
        """Note that the record is in the destination's ledger; its host may free it if it is also `durable`."""
        account = self._accounts[host]
        with self._changed:
            self._move(account, row.index, "deliver")
            self._delivered.add(row.index)
            self._release(row.index)
            self._may_free(account, row, freeable=durable)

    def refuse(self, host: str, row: ShardRow) -> None:
        """Note that the record cannot be brought from this host; another host that offers it may bring it."""
        account = self._accounts[host]
        with self._changed:
            self._move(account, row.index, "refuse")
            del account.states[row.index]
            account.failed[row.index] = row
            self._release(row.index)

    def give_back(self, host: str) -> None:
        """Give up a lost host's records that have not landed: they may be offered again, by any host."""
        account = self._accounts[host]
        with self._changed:
            for row in [*account.queue, *account.held_up.values()]:
                account.counts["offered"] -= 1
                del account.states[row.index]
                if row.index not in self._claims:
                    self._reserved.pop(row.index, None)
            account.queue.clear()
            account.held_up.clear()
            for index in [index for index, state in account.states.items() if state == "claimed"]:
                self._move(account, index, "return")
                self._release(index)

    def failed(self, host: str) -> dict[int, ShardRow]:
        """Return the records refused since the last call."""
        account = self._accounts[host]
        with self._changed:
            failed, account.failed = account.failed, {}
            return failed

    def is_fetched(self, host: str) -> bool:
        """Return whether no record is left to be claimed, and every claimed record has landed or was refused."""
        counts = self._accounts[host].counts
        return not counts["offered"] and not counts["claimed"]

    def is_settled(self, host: str) -> bool:
        """Return whether no record of the host is on its way to the ledger."""
        return not self._accounts[host].counts["landed"]

    def wait(self, seconds: float = WAIT_SECONDS) -> None:
        """Return when a record was delivered, refused or returned, or may be freed, or after so long."""
        with self._changed:
            self._changed.wait(seconds)

    def delivered_now(self, index: int) -> bool:
        """Return whether this pull has delivered the record."""
        return index in self._delivered

    def to_free(self, host: str, most: int) -> list[Delivered]:
        """Return durable records that the host has not been told of. They stay in the queue until `free` is called."""
        queue = self._accounts[host].to_free
        with self._changed:
            return [queue[number] for number in range(min(most, len(queue)))]

    def free(self, host: str, records: list[Delivered]) -> None:
        """Note that the host was told of these records, which are the first ones of `to_free`."""
        account = self._accounts[host]
        with self._changed:
            for record in records:
                account.to_free.popleft()
                self._move(account, record.index, "free")
                del account.states[record.index]

    def _find(self, host: str, row: ShardRow, *, freeable: bool) -> None:
        account = self._accounts[host]
        self._move(account, row.index, "find")
        if row.index not in self._claims:
            self._reserved.pop(row.index, None)
        self._may_free(account, row, freeable=freeable)

    def _may_free(self, account: _Account, row: ShardRow, *, freeable: bool) -> None:
        if freeable:
            account.to_free.append(Delivered(index=row.index, xxh3=row.xxh3))
            self._changed.notify_all()
        else:
            del account.states[row.index]

    def _release(self, index: int) -> None:
        """End the claim, so that hosts that waited for it can claim the record."""
        self._claims.pop(index, None)
        self._reserved.pop(index, None)
        for account in self._accounts.values():
            row = account.held_up.pop(index, None)
            if row is not None:
                account.queue.appendleft(row)
        self._changed.notify_all()

    def _move(self, account: _Account, index: int, event: Event) -> None:
        before, after = MOVES[event]
        if account.states.get(index) != before:
            raise RuntimeError(f"record {index} is {account.states.get(index)!r}, so it cannot {event}")
        account.counts[before] -= 1
        if after is None:
            del account.states[index]
            return
        account.states[index] = after
        account.counts[after] += 1

    def _room_of(self, row: ShardRow) -> float:
        return row.size_bytes * (PACKED_SHARE if self._destination.store == "compressed" else 1)

    def _refuse_too_much(self, more: float) -> None:
        """Raise HostError if `more` bytes do not fit beside the reserved bytes.

        A record that is being delivered counts twice, as a file and as reserved room, so it is waited for first.
        """
        while more:
            needed, room = sum(self._reserved.values()) + more, self._destination.room_bytes()
            if needed <= room:
                return
            if self._stop.is_set() or not any(account.counts["landed"] for account in self._accounts.values()):
                raise HostError(
                    f"{self._destination.name} has room for {max(room, 0) / 1e9:.2f} GB, "
                    f"and {needed / 1e9:.2f} GB are to come.",
                    remedy="Pull to a larger disk, pull fewer hosts at once, or keep shards with --store compressed.",
                )
            self._changed.wait(WAIT_SECONDS)
