"""The dump directory is taken away under a server that runs: made again within seconds, or named with its cause."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.context import Context
from remote.servers.housekeeping import dump
from remote.servers.lifecycle import life, records
from remote.servers.probing.ready import Readiness
from remote.shared.errors import HostError
from remote.shared.messages.server import CaptureState, ServerState, SuperviseRequest
from remote.shared.paths import DUMP_MARKER
from remote.shared.processes import MARK, find, reference

pytestmark = pytest.mark.timeout(120)


def test_a_directory_that_vanished_is_created_again_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    dump.claim(folder, "mark")
    assert dump.keep(folder, "mark") == ""
    shutil.rmtree(folder)
    assert "vanished under the server and was created again" in dump.keep(folder, "mark")
    assert (dump.claimed_by(folder), folder.stat().st_mode & 0o777) == ("mark", 0o700)
    (folder / DUMP_MARKER).unlink()
    assert "was created again" in dump.keep(folder, "mark")


def test_a_link_in_place_of_the_directory_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    folder, target = tmp_path / "dumps", tmp_path / "somebody's"
    dump.claim(target, "theirs")
    folder.symlink_to(target)
    with pytest.raises(HostError, match="is a link, a file, or a directory of another user"):
        dump.keep(folder, "mark")
    assert dump.claimed_by(target) == "theirs"


def test_a_directory_of_foreign_files_in_place_of_the_dumps_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(HostError, match=r"holds files but no \.roost marker"):
        dump.keep(folder, "mark")


def test_the_likely_cause_depends_on_the_path_and_on_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "RemoveIPC=yes" in dump.likely_cause(Path("/dev/shm/sglang_hs"))
    assert "systemd-tmpfiles" in dump.likely_cause(Path("/tmp/sglang_hs"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "RemoveIPC" not in dump.likely_cause(Path("/dev/shm/sglang_hs"))


@pytest.mark.processes
def test_a_running_server_keeps_its_directory_and_ends_if_a_link_takes_its_place(
    context: Context, prepare: Callable[..., ServerState], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def proven(_: Readiness) -> str:
        return "proven"

    monkeypatch.setattr(Readiness, "wait", proven)
    monkeypatch.setattr(life, "DUMP_DIR_SECONDS", 0.05)
    folder = tmp_path / "dumps"
    capture = CaptureState(attach="plugin", payload="p", version="1", boundaries=[1], final="pre", dump_dir=str(folder))
    state = prepare().model_copy(update={"capture": capture})
    record = records.Record(context.workdir.server("main"), state)
    order = SuperviseRequest(name="main", env={**os.environ, MARK: state.mark})
    dump.claim(folder, state.mark)

    async def until(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.02)

    async def live() -> None:
        fault: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        living = asyncio.create_task(life.Life(record, order, asyncio.Event(), fault).run())
        await until(lambda: record.state.status == "ready")
        shutil.rmtree(folder)
        await until(lambda: dump.claimed_by(folder) == state.mark and bool(record.state.trouble))
        assert record.state.status == "ready"
        assert "was created again" in records.report(record.state.model_copy(update={"supervisor": ours})).problem
        shutil.rmtree(folder)
        folder.symlink_to(tmp_path)
        await living

    ours = reference(os.getpid())
    asyncio.run(asyncio.wait_for(live(), 60))
    assert record.state.status == "failed"
    assert record.state.cause.startswith("Its dump directory was taken away.")
    assert "is a link" in record.state.cause
    assert find(record.state.server) is None
