"""A record's states: every transition that there is, one claim a record, and room that is given back."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.shared.errors import HostError
from remote.shared.messages.extract import ShardRow
from remote.shared.transfer.books import MOVES, Books
from remote.shared.transfer.destination import Destination
from tests.conftest import CLONE

SIZE = 1 << 20


def row(index: int) -> ShardRow:
    return ShardRow(index=index, rows=1, size_bytes=SIZE, xxh3="0" * 32, epoch=1)


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with Destination(tmp_path) as destination:
        made = Books(destination, threading.Event())
        for host in ("one", "two"):
            made.open(host)
        yield made


def test_the_page_shows_the_transitions_that_there_are() -> None:
    page = (CLONE / "docs" / "pull.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w-]+) \|", page, re.MULTILINE)
    assert {event: (before, None if after == "-" else after) for event, before, after in rows} == MOVES


def test_a_claim_is_one_host_s_and_the_other_gets_it_if_the_first_cannot_bring_the_record(books: Books) -> None:
    books.offer("one", [row(0)])
    books.offer("two", [row(0)])
    claimed = books.claim("one")
    assert claimed is not None
    assert books.claim("two") is None
    assert not books.is_fetched("two")
    books.refuse("one", claimed)
    assert books.claim("two") == row(0)


def test_a_lost_host_gives_its_claims_back(books: Books) -> None:
    books.offer("one", [row(0), row(1)])
    books.offer("two", [row(0)])
    books.claim("one")
    books.give_back("one")
    assert books.is_fetched("one")
    assert books.claim("two") == row(0)
    books.offer("one", [row(0), row(1)])
    assert books.claim("one") == row(1)


def test_a_record_that_landed_stays_claimed_until_it_is_in_the_ledger(books: Books) -> None:
    books.offer("one", [row(0)])
    books.offer("two", [row(0)])
    books.claim("one")
    books.land("one", row(0))
    books.give_back("one")
    assert books.claim("two") is None
    books.deliver("one", row(0), durable=True)
    assert [record.index for record in books.to_free("one", 9)] == [0]


@pytest.mark.parametrize("event", ["land", "refuse", "deliver"])
def test_a_transition_that_is_not_in_the_table_is_a_fault(books: Books, event: str) -> None:
    books.offer("one", [row(0)])
    moves = {
        "land": lambda: books.land("one", row(0)),
        "refuse": lambda: books.refuse("one", row(0)),
        "deliver": lambda: books.deliver("one", row(0), durable=True),
    }
    with pytest.raises(RuntimeError, match="is 'offered'"):
        moves[event]()


def test_what_could_not_be_freed_now_is_freed_later(books: Books) -> None:
    books.offer("one", [row(index) for index in range(3)])
    for _ in range(3):
        claimed = books.claim("one")
        assert claimed is not None
        books.land("one", claimed)
        books.deliver("one", claimed, durable=claimed.index != 1)
    first = books.to_free("one", 1)
    assert books.to_free("one", 1) == first
    books.free("one", first)
    assert [record.index for record in books.to_free("one", 9)] == [2]


def test_room_is_set_aside_once_a_record_and_given_back(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Destination, "room_bytes", lambda self: 2.5 * SIZE)
    for _ in range(5):  # a host that is lost again and again
        books.offer("one", [row(0), row(1)])
        books.claim("one")
        books.give_back("one")
    books.offer("one", [row(0), row(1)])
    books.offer("two", [row(0), row(1)])
    with pytest.raises(HostError, match="are to come"):
        books.offer("two", [row(2)])
    claimed = books.claim("one")
    assert claimed is not None
    books.land("one", claimed)
    books.deliver("one", claimed, durable=True)
    books.offer("two", [row(2)])
