"""Cleaning frees what is old or named, and never what is used or not yet pulled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remote.context import Context
from remote.extract.ledger import Ledger, Row, State
from remote.shared.errors import UsageError
from remote.shared.messages.clean import CleanRequest
from remote.storage.clean import clean

OLD = time.time() - 90 * 86_400


def aged(path: Path) -> None:
    for file in [*path.rglob("*"), path]:
        os.utime(file, (OLD, OLD))


@pytest.fixture
def runs(context: Context) -> Context:
    """`pulled` and `unpulled` are old, `fresh` is not; each has a record."""
    states: dict[str, State] = {"pulled": "freed", "unpulled": "done", "fresh": "freed"}
    for name, state in states.items():
        paths = context.workdir.run(name)
        paths.shards.mkdir(parents=True)
        paths.shard(0).write_bytes(b"x" * 8192)
        with Ledger(paths.ledger) as ledger:
            ledger.record([Row(index=0, state=state, rows=1, epoch=0)])
        if name != "fresh":
            aged(paths.root)
    return context


def left(context: Context) -> set[str]:
    return {path.name for path in context.workdir.runs.iterdir()}


def test_an_old_run_goes_and_one_with_unpulled_records_or_a_fresh_one_stays(runs: Context) -> None:
    result = clean(CleanRequest(), runs)
    assert left(runs) == {"unpulled", "fresh"}
    assert result.removed_bytes >= 8192
    kept = {item.name: item.kept for item in result.stored}
    assert "1 records that no pull has freed" in kept["unpulled"]
    assert kept["pulled"] == ""


def test_a_dry_run_tells_sizes_and_removes_nothing(runs: Context) -> None:
    result = clean(CleanRequest(dry_run=True), runs)
    assert left(runs) == {"pulled", "unpulled", "fresh"}
    assert [item.name for item in result.stored if not item.kept] == ["pulled"]
    assert all(item.size_bytes >= 8192 for item in result.stored)


def test_a_named_run_goes_whatever_its_age_and_an_unpulled_one_only_by_force(runs: Context) -> None:
    clean(CleanRequest(names=["fresh", "unpulled"]), runs)
    assert left(runs) == {"pulled", "unpulled"}
    clean(CleanRequest(names=["unpulled"], force=True), runs)
    assert left(runs) == {"pulled"}


def test_force_without_a_name_takes_no_unpulled_run(runs: Context) -> None:
    clean(CleanRequest(force=True, older_than_seconds=0), runs)
    assert left(runs) == {"unpulled"}


def test_a_name_that_nothing_has_is_an_error(runs: Context) -> None:
    with pytest.raises(UsageError, match="'fersh'"):
        clean(CleanRequest(names=["fersh"]), runs)


def test_payloads_in_use_stay_and_others_go(context: Context) -> None:
    for digest in ("newest", "running", "unused"):
        (context.workdir.payloads / digest / "remote").mkdir(parents=True)
    (context.workdir.payloads / "current").symlink_to("newest")
    aged(context.workdir.payloads)
    runner = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        cwd=context.workdir.payloads / "running",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert runner.stdout is not None
    runner.stdout.readline()
    try:
        clean(CleanRequest(), context)
    finally:
        runner.communicate("")
    assert {path.name for path in context.workdir.payloads.iterdir()} == {"current", "newest", "running"}


def test_what_an_interrupted_command_left_goes_when_it_is_old(context: Context) -> None:
    (context.workdir.runs / ".aside-1-half").mkdir(parents=True)
    aged(context.workdir.runs)
    clean(CleanRequest(), context)
    assert left(context) == set()
