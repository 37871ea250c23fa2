"""Cleaning removes old or named items, and never items in use or unpulled records."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remote.context import Context
from remote.servers.lifecycle import logfile, records
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.clean import CleanRequest
from remote.shared.messages.extract import FreedRequest
from remote.shared.messages.server import ServerSpec, ServerState
from remote.shared.paths import Workdir
from remote.storage.clean import clean
from remote.work.ledger import Ledger, Row, State
from remote.work.verbs import freed
from tests.identities import run_identity

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
            ledger.note({"identity": run_identity(name=name).model_dump_json()})
            ledger.record([Row(index=0, state=state, rows=1, epoch=0)])
        if name != "fresh":
            aged(paths.root)
    return context


def left(context: Context) -> set[str]:
    return {path.name for path in context.workdir.runs.iterdir()}


def test_an_old_run_is_removed_and_a_fresh_or_unpulled_run_stays(runs: Context) -> None:
    result = clean(CleanRequest(), runs)
    assert left(runs) == {"unpulled", "fresh"}
    assert result.removed_bytes >= 8192
    kept = {item.name: item.kept for item in result.stored}
    assert "1 record that no pull has freed" in kept["unpulled"]
    assert kept["pulled"] == ""


def test_a_dry_run_tells_sizes_and_removes_nothing(runs: Context) -> None:
    result = clean(CleanRequest(dry_run=True), runs)
    assert left(runs) == {"pulled", "unpulled", "fresh"}
    assert [item.name for item in result.stored if not item.kept] == ["pulled"]
    assert all(item.size_bytes >= 8192 for item in result.stored)


def test_a_named_run_is_removed_at_any_age_and_an_unpulled_run_only_by_force(runs: Context) -> None:
    clean(CleanRequest(names=["fresh", "unpulled"]), runs)
    assert left(runs) == {"pulled", "unpulled"}
    clean(CleanRequest(names=["unpulled"], force=True), runs)
    assert left(runs) == {"pulled"}


def test_force_without_a_name_takes_no_unpulled_run(runs: Context) -> None:
    clean(CleanRequest(force=True, older_than_seconds=0), runs)
    assert left(runs) == {"unpulled"}


def test_a_name_that_matches_nothing_is_an_error(runs: Context) -> None:
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


def test_old_leftovers_of_interrupted_commands_are_removed(context: Context) -> None:
    (context.workdir.runs / ".aside-1-half").mkdir(parents=True)
    aged(context.workdir.runs)
    clean(CleanRequest(), context)
    assert left(context) == set()


def test_a_run_that_is_a_link_stays_with_what_it_leads_to_and_is_named(context: Context, tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk2" / "kimi"
    (elsewhere / "shards").mkdir(parents=True)
    (elsewhere / "shards" / "hs_0.safetensors").write_bytes(b"states")
    context.workdir.runs.mkdir(parents=True)
    (context.workdir.runs / "kimi").symlink_to(elsewhere)
    result = clean(CleanRequest(names=["kimi"], force=True), context)
    assert [item.kept for item in result.stored] == [f"it is a link to {elsewhere}: remove that folder"]
    assert (context.workdir.runs / "kimi" / "shards" / "hs_0.safetensors").read_bytes() == b"states"


def test_links_inside_a_removed_run_are_not_followed(runs: Context, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (runs.workdir.run("pulled").root / "more").symlink_to(outside)
    clean(CleanRequest(names=["pulled"], force=True), runs)
    assert left(runs) == {"unpulled", "fresh"}
    assert (outside / "precious").exists()


def test_a_dry_run_shows_real_paths(context: Context, tmp_path: Path) -> None:
    (context.workdir.root / "runs" / "old").mkdir(parents=True)
    (tmp_path / "home").symlink_to(context.workdir.root)
    through = Context(Workdir(tmp_path / "home"), context.report)
    result = clean(CleanRequest(dry_run=True, names=["old"]), through)
    assert [item.path for item in result.stored] == [str(context.workdir.root.resolve() / "runs" / "old")]


def test_two_workdirs_with_one_log_dir_clean_their_own_logs_alone(context: Context, tmp_path: Path) -> None:
    other = Context(Workdir(tmp_path / "another host"), context.report)
    spec = ServerSpec(name="main", model="m", port=1, log_dir=str(tmp_path / "logs"))
    logs: dict[str, list[Path]] = {}
    for place in (context, other, context):
        paths = place.workdir.server("main")
        path = logfile.log_path(paths, spec, logfile.next_start(paths, spec))
        os.close(logfile.create(paths, path))
        state = {"name": "main", "mode": "serve", "status": "stopped", "port": 1, "model": "m", "command": []}
        records.save(paths, ServerState.model_validate({**state, "log": str(path), "spec": spec}))
        logs.setdefault(str(place.workdir.root), []).append(path)
    mine, others = logs[str(context.workdir.root)], logs[str(other.workdir.root)]
    found = {item.path: item.kept for item in clean(CleanRequest(dry_run=True, names=["main"]), context).stored}
    assert found == {str(mine[0]): "", str(mine[1]): "the server's newest log"}
    assert {item.path for item in clean(CleanRequest(dry_run=True), other).stored} == {str(others[0])}


def test_nothing_is_freed_through_a_link(runs: Context, tmp_path: Path) -> None:
    shards = runs.workdir.run("unpulled").shards
    shards.rename(tmp_path / "moved")
    shards.symlink_to(tmp_path / "moved")
    with pytest.raises(HostError, match=r"is a link to .*moved, and nothing is freed through a link"):
        freed(FreedRequest(identity=run_identity(name="unpulled"), records=[]), runs)
