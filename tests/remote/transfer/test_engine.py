"""The engine's promises, with hosts that are folders behind real senders: what goes wrong costs only itself."""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from remote.shared.errors import HostError, RoostError, UsageError
from remote.shared.messages.transfer import HostTally
from remote.shared.supervised.pools import Pool
from remote.shared.transfer import destination as destinations
from remote.shared.transfer import engine as engines
from remote.shared.transfer import ledger
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.engine import Engine
from remote.shared.transfer.hostpull import LostHostError
from remote.shared.transfer.origin import Offer
from tests.remote.transfer.origins import SENDER, Shelf, bounds_of, wish
from tests.shards import SMALLEST, shard

MIB = 1 << 20
FINAL = "hidden_states/hs_0.safetensors"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "to"


@contextmanager
def engine_to(to: Path, *hosts: Shelf, **asked: object) -> Iterator[Engine]:
    with Destination(to) as destination, Engine(destination, wish(**asked), bounds_of(*hosts)) as engine:
        engine.enlist([host.source.name for host in hosts])
        yield engine


def bring(to: Path, *hosts: Shelf, **asked: object) -> dict[str, HostTally | Exception]:
    """One pull, a thread a host; what came of each."""
    with engine_to(to, *hosts, **asked) as engine, Pool(len(hosts), "host") as pool:
        jobs = {host.source.name: pool.submit(engine.bring, host) for host in hosts}
        return {name: job.exception(120) or job.result() for name, job in jobs.items()}  # type: ignore[misc]


def bring_into(destination: Destination, host: Shelf) -> None:
    with Engine(destination, wish(free=True), bounds_of(host)) as engine:
        engine.bring(host)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "the condition did not come true"
        time.sleep(0.01)


def once(flag: Path, first: str) -> list[str]:
    """A login that does `first` in the shell the first time, and starts the sender from then on."""
    there = shlex.quote(str(flag))
    return ["sh", "-c", f"if [ ! -e {there} ]; then touch {there}; {first}; fi; exec {shlex.join(SENDER)}"]


def after(path: Path) -> list[str]:
    """A login that waits for a file."""
    return ["sh", "-c", f"while [ ! -e {shlex.quote(str(path))} ]; do sleep 0.02; done; exec {shlex.join(SENDER)}"]


def test_a_record_that_two_hosts_offer_is_delivered_once_and_never_moved(tmp_path: Path, to: Path) -> None:
    one = Shelf("one", tmp_path / "1", {0: shard(MIB)})
    two = Shelf("two", tmp_path / "2", {0: shard(MIB), 1: shard(MIB)}, after(to / FINAL))
    seen: list[int] = []

    def watch() -> None:
        seen.append((to / FINAL).stat().st_ino)

    two.before_free = watch
    found = bring(to, one, two, free=True)
    tallies = [tally for tally in found.values() if isinstance(tally, HostTally)]
    assert [tally.delivered for tally in tallies] == [1, 1]
    assert seen == [(to / FINAL).stat().st_ino]
    assert (to / FINAL).read_bytes() == (tmp_path / "1" / "hs_0.safetensors").read_bytes()
    assert (one.freed, two.freed) == ([0], [1])


def test_a_record_that_one_host_cannot_bring_comes_from_the_other_in_the_same_pull(tmp_path: Path, to: Path) -> None:
    content = shard(MIB)
    one = Shelf("one", tmp_path / "1", {0: content})
    (tmp_path / "1" / "hs_0.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    claimed = to / "roost" / "parts" / "hs_0.safetensors.part"
    two = Shelf("two", tmp_path / "2", {0: content}, after(claimed))
    bring(to, one, two)
    assert (to / FINAL).read_bytes() == content


def test_a_delivered_record_stays_until_the_one_that_replaces_it_is_whole(tmp_path: Path, to: Path) -> None:
    before, now = shard(9 * MIB), shard(9 * MIB)
    bring(to, Shelf("one", tmp_path / "1", {0: before}))
    anew = Shelf("one", tmp_path / "1", {0: now})
    part = to / "roost" / "parts" / "hs_0.safetensors.part"
    slowly = {"streams": 1, "bytes_per_second": 1e6}
    with engine_to(to, anew, limits=slowly) as engine, Pool(1, "host") as pool:
        pool.submit(engine.bring, anew)
        wait_until(lambda: engine.tallies["one"].wire_bytes > 0)
        assert part.exists()
        assert (to / FINAL).read_bytes() == before
        engine.stop.set()
    assert (to / FINAL).read_bytes() == before
    with ledger.DestinationLedger(to / "roost" / "ledger.sqlite") as kept:
        assert [row.xxh3 for row in kept.rows()] != [anew.rows[0].xxh3]
    bring(to, anew)
    assert (to / FINAL).read_bytes() == now


def test_a_ledger_that_is_locked_ends_the_pull_in_a_sentence(
    tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_BUSY_SECONDS", 0.2)
    host = Shelf("one", tmp_path / "1", {0: shard(MIB)})
    with Destination(to) as destination:
        other = sqlite3.connect(to / "roost" / "ledger.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HostError, match="database is locked"):
            bring_into(destination, host)
    other.close()
    assert host.freed == []
    bring(to, host, free=True)
    assert host.freed == [0]


def test_an_unforeseen_error_of_the_delivery_reaches_the_owner(
    tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Destination, "place", broken)
    host = Shelf("one", tmp_path / "1", dict.fromkeys(range(5), shard(SMALLEST)))
    with Destination(to) as destination, pytest.raises(ZeroDivisionError):
        bring_into(destination, host)


def test_freeing_goes_on_after_a_lost_call(tmp_path: Path, to: Path) -> None:
    host = Shelf("one", tmp_path / "1", {0: shard(MIB), 1: shard(MIB)})
    calls: list[int] = []

    def lose_the_first() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise LostHostError("the link is down")

    host.before_free = lose_the_first
    bring(to, host, free=True)
    assert sorted(host.freed) == [0, 1]


def test_records_that_could_not_be_freed_are_told(tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "FREE_TRIES", 2)
    host = Shelf("one", tmp_path / "1", {0: shard(MIB)})

    def lose_all() -> None:
        raise LostHostError("the link is down")

    host.before_free = lose_all
    error = bring(to, host, free=True)["one"]
    assert isinstance(error, LostHostError)
    assert (to / FINAL).exists()


class Coming(Shelf):
    """A host that is lost once in the middle of a run, and whose run goes on."""

    def offers(self, after: int) -> Offer:
        found = super().offers(after)
        self.status = "complete" if self.listings >= 3 else "running"
        return found


def test_room_is_set_aside_once_however_often_a_host_is_lost(
    tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "FOLLOW_SECONDS", 0.01)
    size = 5 * MIB
    monkeypatch.setattr(Destination, "room_bytes", lambda self: 1.5 * size)
    host = Coming("one", tmp_path / "1", {0: shard(size)}, once(tmp_path / "flag", "exit 3"))
    monkeypatch.setattr("remote.shared.transfer.lane.PATIENCE", 1)
    found = bring(to, host, follow=True)["one"]
    assert isinstance(found, HostTally), found
    assert (found.delivered, found.offered) == (1, 1)
    assert host.listings >= 2


def test_a_name_that_does_not_resolve_for_a_moment_ends_nothing(tmp_path: Path, to: Path) -> None:
    words = "echo 'ssh: Could not resolve hostname gpu1: Temporary failure in name resolution' >&2; exit 255"
    host = Shelf("one", tmp_path / "1", {0: shard(MIB)}, once(tmp_path / "flag", words))
    found = bring(to, host)["one"]
    assert isinstance(found, HostTally), found
    assert found.delivered == 1


def test_without_an_ssh_client_the_sentence_names_it(tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    host = Shelf("one", tmp_path / "1", {0: shard(MIB)}, ["ssh", "gpu1", "python3"])
    error = bring(to, host)["one"]
    assert isinstance(error, RoostError)
    assert "ssh could not be started here: No such file or directory." in str(error)
    assert "Install the OpenSSH client" in str(error)


class Planned(Shelf):
    """A host that was given a share, and whose run has not begun when it is first asked."""

    def offers(self, after: int) -> Offer:
        found = super().offers(after)
        if self.listings == 1:
            raise UsageError("There is no run 'trial' here.")
        return found


def test_following_waits_for_a_planned_run_to_begin(tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "FOLLOW_SECONDS", 0.01)
    host = Planned("one", tmp_path / "1", {0: shard(MIB)})
    assert isinstance(bring(to, host, follow=True)["one"], UsageError)
    host = Planned("one", tmp_path / "1", {0: shard(MIB)})
    host.source.share_records = 4
    said: list[str] = []
    with engine_to(to, host, follow=True) as engine:
        tally = engine.tallies["one"]
        wait = engine.stop.wait

        def heard(seconds: float | None = None) -> bool:
            said.append(tally.waiting)
            return wait(seconds)

        monkeypatch.setattr(engine.stop, "wait", heard)
        engine.bring(host)
    assert "for the run to begin there" in said
    assert (tally.delivered, tally.waiting) == (1, "")


def test_following_shows_the_share_of_the_run_and_not_of_what_is_there(tmp_path: Path, to: Path) -> None:
    contents = {0: shard(MIB), 1: shard(MIB)}
    bring(to, Shelf("one", tmp_path / "1", {0: contents[0]}))
    host = Shelf("one", tmp_path / "1", contents)
    host.source.share_records, host.source.share_bytes = 8, 8 * MIB
    tally = bring(to, host, follow=True)["one"]
    assert isinstance(tally, HostTally)
    assert (tally.done_bytes, tally.total_bytes, tally.share_records) == (2 * MIB, 8 * MIB, 8)


def test_bytes_that_are_no_record_of_the_run_are_not_delivered(tmp_path: Path, to: Path) -> None:
    wrong = shard(MIB).replace(b", 4, 512]", b", 2,1024]")
    tally = bring(to, Shelf("one", tmp_path / "1", {0: wrong, 1: shard(MIB)}))["one"]
    assert isinstance(tally, HostTally)
    assert "[255, 4, 512] was wanted" in tally.failed[0]
    assert [path.name for path in (to / "hidden_states").iterdir()] == ["hs_1.safetensors"]


def test_what_is_delivered_has_the_modes_of_the_umask(tmp_path: Path, to: Path) -> None:
    before = os.umask(0o027)
    try:
        bring(to, Shelf("one", tmp_path / "1", {0: shard(MIB)}))
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [to, *to.rglob("*")]}
    assert modes[to / FINAL] == 0o640
    assert modes[to] == modes[to / "hidden_states"] == 0o750
    assert modes[to / "roost" / "ledger.sqlite"] == 0o640


def test_what_does_not_fit_is_refused_before_a_byte_is_sent(
    tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Destination, "free_bytes", lambda self: destinations.SPARE_BYTES + MIB - 1)
    error = bring(to, Shelf("one", tmp_path / "1", {0: shard(MIB)}))["one"]
    assert isinstance(error, HostError)
    assert "are to come" in str(error)


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo"])
def test_a_part_that_is_no_regular_file_is_removed_and_nothing_is_written_through_it(
    tmp_path: Path, to: Path, kind: str
) -> None:
    victim, part = tmp_path / "victim", to / "roost" / "parts" / "hs_0.safetensors.part"
    part.parent.mkdir(parents=True)
    if kind == "fifo":
        os.mkfifo(part)
    else:
        part.symlink_to(victim)
    if kind == "link":
        victim.write_bytes(b"somebody's own")
    content = shard(MIB)
    bring(to, Shelf("one", tmp_path / "1", {0: content}))
    assert (to / FINAL).read_bytes() == content
    assert not (to / FINAL).is_symlink()
    assert not victim.exists() or victim.read_bytes() == b"somebody's own"


def test_a_shard_on_its_host_that_is_a_link_is_not_sent(tmp_path: Path, to: Path) -> None:
    content = shard(MIB)
    host = Shelf("one", tmp_path / "1", {0: content})
    (tmp_path / "1" / "hs_0.safetensors").rename(tmp_path / "elsewhere")
    (tmp_path / "1" / "hs_0.safetensors").symlink_to(tmp_path / "elsewhere")
    tally = bring(to, host)["one"]
    assert isinstance(tally, HostTally)
    assert "cannot be read there" in tally.failed[0]
    assert not (to / FINAL).exists()
