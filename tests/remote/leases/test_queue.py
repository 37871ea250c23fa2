"""A queue on a shared folder: every chunk is published once, whoever dies, is late, is slow, or comes twice."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote.shared.leases import claims
from remote.shared.leases.claims import Claim
from remote.shared.leases.queue import Queue
from remote.shared.leases.shelves import Shelves

CHUNKS = 12


def publish(queue: Queue, claim: Claim) -> bool:
    aside = queue.results.aside(claim.chunk)
    (aside / "rows.json").write_text(f"{claim.holder} {claim.token}")
    return queue.results.publish(claim.chunk, aside)


def age(queue: Queue, holder: str, seconds: float) -> None:
    """Let a holder's last beat be so long ago."""
    path = queue.folder / "beats" / holder
    if path.exists():
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


def test_a_dead_holder_s_chunk_gets_a_higher_token_and_its_late_result_is_refused(tmp_path: Path) -> None:
    late, other = Queue(tmp_path, 1, "r0.0"), Queue(tmp_path, 1, "r1.0")
    first = late.take()
    assert first is not None
    assert other.take() is None
    age(late, "r0.0", 1000)
    second = other.take()
    assert second is not None
    assert (second.chunk, second.token) == (first.chunk, 2)
    assert publish(other, second)
    assert not publish(late, first)
    assert (late.results.path(0) / "rows.json").read_text() == "r1.0 2"
    assert late.is_over()


def test_a_late_result_that_comes_first_counts(tmp_path: Path) -> None:
    late, other = Queue(tmp_path, 1, "r0.0"), Queue(tmp_path, 1, "r1.0")
    first = late.take()
    age(late, "r0.0", 1000)
    second = other.take()
    assert first is not None
    assert second is not None
    assert not late.claims.holds(first)
    assert publish(late, first)
    assert not publish(other, second)


def test_the_next_attempt_takes_over_at_once_and_a_replica_that_left_is_not_waited_for(tmp_path: Path) -> None:
    first = Queue(tmp_path, 2, "r0.0")
    assert first.take()
    assert first.take()
    again = Queue(tmp_path, 2, "r0.1")
    claim = again.take()
    assert claim is not None
    assert claim.token == 2
    again.leave()
    assert Queue(tmp_path, 2, "r5.0").take() is not None


def test_a_slow_chunk_is_done_by_an_idle_replica_too(tmp_path: Path) -> None:
    slow, idle = Queue(tmp_path, 1, "r0.0"), Queue(tmp_path, 1, "r1.0")
    claim = slow.take()
    assert claim is not None
    assert idle.take_slow(60.0) is None
    path = next((tmp_path / "claims" / "0").glob("0.1.json"))
    os.utime(path, (path.stat().st_mtime - 100,) * 2)
    mine = idle.take_slow(60.0)
    assert mine is not None
    assert (publish(idle, mine), publish(slow, claim)) == (True, False)


def test_a_look_of_an_idle_replica_does_not_grow_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is claimed, and one chunk of the last shelf is not published: no other shelf is read again."""
    monkeypatch.setattr(claims, "SHELF_CHUNKS", 2)
    busy, idle = Queue(tmp_path, 100, "r0.0"), Queue(tmp_path, 100, "r1.0")
    while (claim := busy.take()) is not None:
        if claim.chunk < 99:
            assert publish(busy, claim)
    looks: list[int] = []

    def noting(look: Callable[[int], object]) -> Callable[[int], object]:
        return lambda shelf: [looks.append(shelf), look(shelf)][1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(idle.claims, "tokens", noting(idle.claims.tokens))
    monkeypatch.setattr(idle.results, "chunks", noting(idle.results.chunks))
    while len(Shelves(tmp_path / "marks" / "published", 100).open()) > 1:
        assert idle.take() is None
    looks.clear()
    assert (idle.take(), idle.take_slow(60), idle.is_over()) == (None, None, False)
    assert set(looks) == {49}
    assert len(looks) <= 5


@pytest.fixture(params=[1000, 3])
def shelf_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fits on one shelf, or needs several."""
    monkeypatch.setattr(claims, "SHELF_CHUNKS", request.param)


@pytest.mark.usefixtures("shelf_chunks")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30), replicas=st.integers(1, 5))
def test_every_chunk_is_published_once_at_any_interleaving(tmp_path_factory: object, seed: int, replicas: int) -> None:
    """Replicas take, die, come again, publish late and twice, in a random order."""
    folder = Path(tmp_path_factory.mktemp("queue"))  # type: ignore[attr-defined]
    draw = random.Random(seed)
    attempts = dict.fromkeys(range(replicas), 0)
    queues = {number: Queue(folder, CHUNKS, f"r{number}.0", lease_seconds=100) for number in range(replicas)}
    held: list[tuple[Queue, Claim]] = []
    counted: list[int] = []
    for _ in range(2000):
        number = draw.randrange(replicas)
        queue, what = queues[number], draw.random()
        if what < 0.5 and (claim := queue.take()) is not None:
            held.append((queue, claim))
        elif what < 0.8 and held:
            owner, claim = held.pop(draw.randrange(len(held)))
            if publish(owner, claim):
                counted.append(claim.chunk)
        elif what < 0.9:  # it is killed, its work is lost or comes late, and its next attempt begins
            held = [pair for pair in held if pair[0] is not queue or draw.random() < 0.5]
            attempts[number] += 1
            queues[number] = Queue(folder, CHUNKS, f"r{number}.{attempts[number]}", lease_seconds=100)
        else:
            age(queue, queue.holder, 1000)
        if queues[number].is_over():
            break
    assert sorted(counted) == list(range(CHUNKS))
    tokens = [(claim.chunk, claim.token) for _, claim in held]
    assert len(tokens) == len(set(tokens))
