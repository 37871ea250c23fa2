"""The extractor as a process: detached, in the foreground for other launchers, one for each run, killed and resumed."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from remote.context import Context
from remote.report import Report
from remote.servers.lifecycle import records
from remote.shared.errors import UsageError
from remote.shared.messages.extract import ControlRequest, ExtractRequest, RunRequest, RunStatus
from remote.shared.processes import members
from remote.shared.shard.layout import Layout
from remote.work.launch import extract
from remote.work.lock import is_locked
from remote.work.progress import read_state
from remote.work.verbs import control, status
from tests.remote.extract.conftest import RUN, Host, identity, tokens_of, write_assignment
from tests.remote.extract.standin import states_of
from tests.remote.extract.standin_process import until

ROOT = Path(__file__).resolve().parents[3]


def quiet(host: Host) -> Context:
    return Context(host.workdir, Report(io.StringIO()))


def ended(host: Host) -> RunStatus:
    until(lambda: not is_locked(host.paths), "the extractor's end")
    return status(RunRequest(run=RUN), quiet(host))


def test_the_extractor_is_detached_in_its_own_session_with_its_output_in_the_log(host: Host) -> None:
    host.serve(delay=0.05)
    host.assign([16] * 30, in_flight_tokens=32)
    state = extract(ExtractRequest(run=RUN), quiet(host))
    assert state.process is not None
    assert (state.process.session, state.process.group) == (state.process.pid, state.process.pid)
    for stream in (0, 1, 2):
        target = os.readlink(f"/proc/{state.process.pid}/fd/{stream}")
        assert target == ("/dev/null" if stream == 0 else str(host.paths.log))
    told = ended(host)
    assert (told.alive, told.state.status, told.state.counts.done) == (False, "complete", 30)
    assert re.fullmatch(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] complete: .*", host.paths.log.read_text().splitlines()[-1])


def test_a_second_start_joins_the_extractor_that_runs(host: Host) -> None:
    host.serve(delay=0.05)
    host.assign([16] * 40, in_flight_tokens=16)
    first = extract(ExtractRequest(run=RUN), quiet(host))
    second = extract(ExtractRequest(run=RUN), quiet(host))
    assert first.process == second.process
    assert ended(host).state.counts.done == 40


def test_another_launcher_runs_the_extractor_in_the_foreground_from_any_folder(host: Host, tmp_path: Path) -> None:
    host.serve()
    folder = write_assignment(tmp_path / "given by Slurm", [8, 9, 10])
    argv = [sys.executable, "-m", "remote", "extract", "--workdir", str(host.workdir.root), "--assignment", str(folder)]
    done = subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["type"] == "result"
    assert result["value"]["status"] == "complete"
    assert host.states() == {0: "done", 1: "done", 2: "done"}


def test_the_caller_reads_why_the_extractor_did_not_start(host: Host) -> None:
    host.serve(capture="2")
    host.assign([8])
    host.extract()
    host.assign([8], epoch=2, identity=identity(tokenizer="other"))
    with pytest.raises(UsageError, match=r"'trial' \(tokenizer t\), not the run 'trial' \(tokenizer other\)"):
        extract(ExtractRequest(run=RUN), quiet(host))


def test_an_extractor_killed_at_any_moment_resumes_exactly_the_open_records(host: Host) -> None:
    server = host.serve(delay=0.01)
    host.assign([16] * 120, in_flight_tokens=64)
    for share in (20, 50, 80):
        state = extract(ExtractRequest(run=RUN), quiet(host))
        until(lambda share=share: len(host.states()) >= share, f"{share} records")  # type: ignore[misc]
        assert state.process is not None
        os.kill(state.process.pid, signal.SIGKILL)
        told = ended(host)
        assert (told.state.status, told.alive) == ("failed", False)
        assert "killed" in told.state.cause
    before = host.states()
    server.config.faults = {}
    seen = server.seen()
    assert extract(ExtractRequest(run=RUN), quiet(host)).process is not None
    assert ended(host).state.counts.done == 120
    again = {index for index, count in server.seen().items() if count > seen.get(index, 0)}
    assert again == {str(index) for index in range(120) if index not in before}
    assert host.dumps() == []
    assert sorted(path.name for path in host.paths.shards.iterdir()) == sorted(
        f"hs_{i}.safetensors" for i in range(120)
    )


def test_pause_resume_and_stop_let_records_in_flight_finish(host: Host) -> None:
    server = host.serve(delay=0.05)
    host.assign([16] * 200, in_flight_tokens=64)
    extract(ExtractRequest(run=RUN), quiet(host))
    control(ControlRequest(run=RUN, action="pause"), quiet(host))
    until(lambda: read_state(host.paths).status == "paused", "a pause")  # type: ignore[union-attr]
    until(lambda: len(server.seen()) == len(host.states()), "the end of what was in flight")
    assert status(RunRequest(run=RUN), quiet(host)).word == "paused"
    extract(ExtractRequest(run=RUN), quiet(host))
    assert status(RunRequest(run=RUN), quiet(host)).word == "paused"
    seen = server.seen()
    control(ControlRequest(run=RUN, action="resume"), quiet(host))
    until(lambda: len(server.seen()) > len(seen), "further requests")
    control(ControlRequest(run=RUN, action="stop"), quiet(host))
    told = ended(host)
    assert told.state.status == "stopped"
    assert told.state.counts.done == len(server.seen()) < 200
    assert control(ControlRequest(run=RUN, action="stop"), quiet(host)).word == "stopped"
    with pytest.raises(UsageError, match="No extractor of the run 'trial' is running"):
        control(ControlRequest(run=RUN, action="pause"), quiet(host))


def test_two_operators_who_pause_and_resume_are_told_of_each_other_and_the_last_request_counts(host: Host) -> None:
    server = host.serve(delay=0.05)
    host.assign([16] * 100, in_flight_tokens=64)
    extract(ExtractRequest(run=RUN), quiet(host))

    def asks(operator: str, action: str) -> RunStatus:
        request = ControlRequest.model_validate({"run": RUN, "action": action})
        return control(request, Context(host.workdir, Report(io.StringIO()), operator))

    assert asks("anna@one", "pause").overruled == ""
    assert asks("anna@one", "pause").overruled == ""
    assert asks("ben@two", "resume").overruled.startswith("anna@one had asked to pause it ")
    told = asks("anna@one", "pause")
    assert told.overruled.startswith("ben@two had asked to resume it ")
    assert told.word in ("paused", "running") or told.word.startswith("draining")
    until(lambda: read_state(host.paths).status == "paused", "a pause")  # type: ignore[union-attr]
    seen = len(server.seen())
    asks("ben@two", "resume")
    until(lambda: len(server.seen()) > seen, "further requests")
    asks("anna@one", "stop")
    assert ended(host).state.status == "stopped"


def test_dumps_whose_rows_are_exchanged_while_it_is_frozen_are_made_again(host: Host) -> None:
    server = host.serve(delay=1.0)
    host.assign([48, 48], in_flight_tokens=96)
    state = extract(ExtractRequest(run=RUN), quiet(host))
    assert state.process is not None
    until(lambda: server.seen() == {"0": 1, "1": 1}, "both requests")
    os.kill(state.process.pid, signal.SIGSTOP)
    until(lambda: len(host.dumps()) == 2, "both dumps")
    first, second = (host.dump_dir / name for name in host.dumps())
    contents = first.read_bytes(), second.read_bytes()
    rows = Layout(48, 3, 64, "F32").states_offset
    first.write_bytes(contents[0][:rows] + contents[1][rows:])
    second.write_bytes(contents[1][:rows] + contents[0][rows:])
    os.kill(state.process.pid, signal.SIGCONT)
    told = ended(host).state
    assert (told.status, told.counts.done, told.retries) == ("complete", 2, 2)
    assert server.seen() == {"0": 2, "1": 2}
    for index in (0, 1):
        wanted = states_of(tokens_of(index, 48).tolist(), server.config)
        np.testing.assert_array_equal(load_file(host.paths.shard(index))["hidden_states"], wanted)


def test_sigterm_ends_the_extractor_like_a_stop(host: Host) -> None:
    host.serve(delay=0.05)
    host.assign([16] * 200, in_flight_tokens=32)
    state = extract(ExtractRequest(run=RUN), quiet(host))
    assert state.process is not None
    until(lambda: len(host.states()) > 3, "some records")
    os.kill(state.process.pid, signal.SIGTERM)
    assert ended(host).state.status == "stopped"
    assert host.dumps() == []


def test_a_host_with_an_old_epoch_starts_nothing(host: Host) -> None:
    host.serve()
    host.assign([8], epoch=3)
    with pytest.raises(UsageError, match="is at epoch 4, but this host only has epoch 3"):
        extract(ExtractRequest(run=RUN, epoch=4), quiet(host))


def test_a_newer_epoch_takes_over_while_it_runs(host: Host) -> None:
    server = host.serve(delay=0.05)
    host.assign([16] * 100, in_flight_tokens=32)
    extract(ExtractRequest(run=RUN), quiet(host))
    until(lambda: len(host.states()) > 3, "some records")
    host.assign([16] * 5, epoch=2, first=200)
    told = ended(host)
    assert (told.state.epoch, told.state.status) == (2, "complete")
    assert set(range(200, 205)) < set(host.states())
    assert len(server.seen()) < 100


def assert_claims_itself_alone(host: Host, pid: int) -> None:
    """Before anything is stopped: the record must be about the stand-in and about nobody else on this machine."""
    state = records.load(host.workdir.server("main"))
    assert state is not None
    assert state.server is not None
    assert state.mark
    assert [process.pid for process in members(state.server, state.mark)] == [pid]


@pytest.mark.parametrize("asked", [None, True, False])
def test_then_stop_ends_the_servers_of_a_complete_run(host: Host, asked: bool | None) -> None:
    server = host.serve()
    assert server.process is not None
    assert_claims_itself_alone(host, server.process.pid)
    host.assign([8] * 3, then_stop=asked is None)
    assert host.extract(then_stop=asked).status == "complete"
    if asked is False:
        assert server.process.poll() is None
    else:
        until(lambda: server.process is not None and server.process.poll() is not None, "the server's end")


def test_then_stop_leaves_the_servers_of_a_run_that_was_stopped(host: Host) -> None:
    server = host.serve(delay=0.05)
    assert server.process is not None
    assert_claims_itself_alone(host, server.process.pid)
    host.assign([8] * 100, in_flight_tokens=16)
    extract(ExtractRequest(run=RUN, then_stop=True), quiet(host))
    control(ControlRequest(run=RUN, action="stop"), quiet(host))
    assert ended(host).state.status == "stopped"
    assert server.process.poll() is None
