"""A host's status words and rates of its runs follow from their present state and its age."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from remote.context import Context
from remote.report import Report
from remote.shared.errors import RoostError
from remote.shared.messages.extract import ExtractorState, RateRequest, StandingRequest
from remote.shared.paths import RunPaths, Workdir
from remote.work.ledger import Ledger, Row
from remote.work.lock import run_lock
from remote.work.progress import word
from remote.work.standing import RATE_MINUTES, rate, standing
from tests.identities import run_identity

NOW = 1_800_000_000.0


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Workdir(tmp_path), Report(io.StringIO()))


def state(status: str, in_flight: int = 0, age: float = 1.0) -> ExtractorState:
    return ExtractorState.model_validate(
        {"run": "r", "epoch": 1, "status": status, "in_flight": in_flight, "updated_at": time.time() - age}
    )


@pytest.mark.parametrize(
    ("status", "in_flight", "alive", "wished", "said"),
    [
        ("running", 12, True, "resume", "running"),
        ("running", 12, True, "stop", "draining 12"),
        ("running", 12, True, "pause", "draining 12"),
        ("running", 0, True, "pause", "paused"),
        ("paused", 0, True, "pause", "paused"),
        ("waiting", 0, True, "resume", "waiting"),
        ("stopped", 0, False, "stop", "stopped"),
        ("complete", 0, False, "pause", "complete"),
        ("failed", 0, False, "resume", "failed"),
    ],
)
def test_the_status_follows_a_request_at_once(status: str, in_flight: int, alive: bool, wished: str, said: str) -> None:
    assert word(state(status, in_flight), alive, wished) == said


def test_an_extractor_that_stopped_writing_its_state_is_not_called_running() -> None:
    assert word(state("running", age=45.0), True, "resume") == "silent for 45 s"
    assert word(state("complete", age=45.0), False, "resume") == "complete"


def run(context: Context, name: str) -> RunPaths:
    paths = context.workdir.run(name)
    paths.shards.mkdir(parents=True)
    paths.state.write_text(state("stopped").model_copy(update={"run": name}).model_dump_json())
    return paths


def test_without_a_name_the_working_runs_or_the_newest_run_are_returned(context: Context) -> None:
    old, new = run(context, "old"), run(context, "new")
    for paths, at in ((old, 1000.0), (new, 2000.0)):
        os.utime(paths.state, (at, at))
    told = standing(StandingRequest(), context)
    assert [one.run for one in told.runs] == ["new"]
    with run_lock(old):
        assert [one.run for one in standing(StandingRequest(), context).runs] == ["old"]
    assert [one.run for one in standing(StandingRequest(run="old"), context).runs] == ["old"]
    unheard = standing(StandingRequest(run="other"), context)
    assert (unheard.runs, unheard.others) == ([], ["new", "old"])


def test_a_run_that_cannot_be_read_does_not_hide_the_others(context: Context) -> None:
    good, bad = run(context, "good"), run(context, "bad")
    bad.ledger.write_bytes(b"no ledger at all" * 400)
    with run_lock(good), run_lock(bad):
        told = {one.run: one for one in standing(StandingRequest(), context).runs}
    assert (told["good"].word, told["bad"].word) == ("stopped", "failed")
    assert str(bad.ledger) in told["bad"].state.cause
    with pytest.raises(RoostError):
        standing(StandingRequest(run="bad"), context)


def extracted(paths: RunPaths, tokens: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One record a minute, of so many tokens; 0 is a minute in which nothing was finished."""
    with Ledger(paths.ledger) as ledger:
        ledger.note({"identity": run_identity(name=paths.root.name).model_dump_json()})
        for minute, rows in enumerate(tokens):
            monkeypatch.setattr("remote.work.ledger.time.time", lambda minute=minute: NOW + 60 * minute)
            if rows:
                ledger.record([Row(index=minute, state="done", rows=rows, epoch=1)])


def test_a_rate_is_the_median_minute_of_work(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rate(RateRequest(), context).tokens_per_second == 0
    paths = run(context, "long")
    extracted(paths, [5, *[6000] * 6, 0, 0, 0, 60, 6000, 6000, 3], monkeypatch)
    found = rate(RateRequest(), context)
    assert (found.tokens_per_second, found.run, found.minutes) == (100.0, "long", 9)


def test_a_short_run_after_a_long_one_changes_nothing(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    extracted(run(context, "long"), [6000] * 20, monkeypatch)
    extracted(run(context, "short"), [90_000] * (RATE_MINUTES + 1), monkeypatch)
    assert rate(RateRequest(), context).run == "long"
