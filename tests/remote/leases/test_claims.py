"""A chunk has one holder, whoever races and whoever is killed; a token is never given twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.shared.errors import HostError
from remote.shared.leases.chunks import cut
from remote.shared.leases.claims import Claim, Claims

CHUNKS = 60
RACERS = 6


@given(st.lists(st.integers(0, 500), max_size=80), st.integers(1, 2000))
def test_every_place_is_in_one_chunk_and_no_chunk_is_empty(lengths: list[int], tokens: int) -> None:
    chunks = cut(lengths, tokens)
    assert [place for chunk in range(len(chunks)) for place in chunks.places(chunk)] == list(range(len(lengths)))
    assert all(chunks.of(place) == chunk for chunk in range(len(chunks)) for place in chunks.places(chunk))
    sizes = [sum(lengths[place] for place in chunks.places(chunk)) for chunk in range(len(chunks))]
    assert all(len(chunks.places(chunk)) for chunk in range(len(chunks)))
    assert all(size >= tokens for size in sizes[:-1])
    assert all(size - lengths[chunks.places(chunk)[-1]] < tokens for chunk, size in enumerate(sizes))


def test_a_claim_is_made_once_and_a_later_one_has_a_higher_token(tmp_path: Path) -> None:
    pool = Claims(tmp_path / "pool")
    first = Claim(chunk=1234, token=1, holder="a")
    assert pool.claim(first)
    assert not pool.claim(first.model_copy(update={"holder": "b"}))
    assert pool.holds(first)
    assert pool.claim(second := Claim(chunk=1234, token=2, holder="b"))
    assert not pool.holds(first)
    assert pool.holds(second)
    assert pool.newest(1234) == second
    assert pool.newest(1) is None
    assert pool.all() == {1234: second}


def test_the_pools_own_machine_and_another_host_never_have_the_same_chunk(tmp_path: Path) -> None:
    pool = Claims(tmp_path)
    assert pool.claim_here(0)
    assert not pool.claim_here(0)
    assert not pool.claim(Claim(chunk=0, token=1, holder="b", lease="f" * 16))
    assert pool.claim(given := Claim(chunk=1, token=1, holder="b", lease="f" * 16, ranges=[(3, 5)], tokens=7))
    assert not pool.claim_here(1)
    assert pool.all() == {0: Claim(chunk=0, token=1), 1: given}
    assert pool.tokens() == {0: 1, 1: 1}


def test_a_claim_that_was_damaged_is_named(tmp_path: Path) -> None:
    pool = Claims(tmp_path)
    pool.claim(Claim(chunk=0, token=1, holder="a"))
    (tmp_path / "0" / "0.1.json").write_text("{")
    with pytest.raises(HostError, match=r"0\.1\.json"):
        pool.all()


def test_a_link_whose_answer_was_lost_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS does: the link was made, and its repetition is told that the file exists."""
    true = os.link

    def lost(source: object, target: object) -> None:
        true(source, target)  # type: ignore[arg-type]
        true(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", lost)
    assert Claims(tmp_path).claim(Claim(chunk=0, token=1, holder="a"))


def _race(folder: Path, holder: str, won: Path) -> None:
    """Claim every chunk, with whatever token comes next; a line for each claim that was made, before and after."""
    pool = Claims(folder)
    with won.open("a", buffering=1) as told:
        for turn in range(3 * CHUNKS):
            chunk = turn % CHUNKS
            newest = pool.newest(chunk)
            claim = Claim(chunk=chunk, token=(newest.token if newest else 0) + 1, holder=holder)
            if pool.claim(claim):
                told.write(f"{claim.chunk}.{claim.token}\n")


@pytest.mark.processes
@pytest.mark.parametrize("killed", [0, 2])
def test_processes_that_race_and_are_killed_never_share_a_claim(tmp_path: Path, killed: int) -> None:
    spawn = multiprocessing.get_context("spawn")
    names = [f"racer-{number}" for number in range(RACERS)]
    racers = [spawn.Process(target=_race, args=(tmp_path / "pool", name, tmp_path / name)) for name in names]
    for racer in racers:
        racer.start()
    for name, racer in zip(names[:killed], racers, strict=False):
        while not (tmp_path / name).exists() or (tmp_path / name).stat().st_size < 40:
            racer.join(0.01)
        os.kill(racer.pid or sys.maxsize, signal.SIGKILL)
    for racer in racers:
        racer.join(120)
    assert [racer.exitcode for racer in racers[killed:]] == [0] * (RACERS - killed)
    told = {name: [line for line in (tmp_path / name).read_text().split("\n") if line] for name in names}
    every = [line for lines in told.values() for line in lines]
    assert len(every) == len(set(every))
    for line, name in ((line, name) for name, lines in told.items() for line in lines):
        chunk, token = map(int, line.split("."))
        assert Claims(tmp_path / "pool").read(chunk, token).holder == name
    newest = Claims(tmp_path / "pool").tokens()
    assert sorted(newest) == list(range(CHUNKS))
    assert sum(newest.values()) - len(every) <= killed  # a racer can be killed between its claim and its word
