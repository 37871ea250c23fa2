"""`inv status`: a table for each run that fits the terminal, and words that were just looked at."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rich.cells import cell_len

from hosts.commands.status import HostStatus
from hosts.console.extraction import any_failed, failure, left_seconds, live_line, show_status
from hosts.console.output import Output
from hosts.errors import HostError, UsageError
from hosts.fleet import Outcome
from hosts.inventory.model import Host
from hosts.tasks.extraction import _refuse_unheard
from remote.shared.messages.extract import Counts, ExtractorState, GpuUse, RunStatus, Standing
from remote.shared.messages.server import ServerReport, ServersResult, ServerState

NO_SERVERS = ServersResult(servers=[])
GPUS = [GpuUse(index=index, used_bytes=71 << 30, total_bytes=141 << 30) for index in range(8)]


def run(name: str, word: str = "running", **changes: Any) -> RunStatus:
    counts = Counts(
        assigned=18_656, done=11_204, tokens_assigned=43_900_000, tokens_done=26_400_000, bytes_done=1 << 40
    )
    settled = word in ("stopped", "complete", "failed")
    state = ExtractorState(
        run=name,
        epoch=1,
        status=word if settled else "running",
        counts=counts.model_copy(update=changes.pop("counts", {})),
        tokens_per_second=11_034.0,
        updated_at=time.time(),
        backpressure_seconds=310.0,
        cause=changes.pop("cause", ""),
    )
    return RunStatus(run=name, alive=not settled, word=word, state=state, **changes)


def host(name: str, *runs: RunStatus) -> Outcome[HostStatus]:
    spec = {"name": "main", "mode": "extract", "model": "/m", "port": 8000}
    state = ServerState.model_validate({**spec, "status": "ready", "command": [], "log": "", "spec": spec})
    servers = ServersResult(servers=[ServerReport(state=state, alive=True, supervised=True)])
    return Outcome(Host(name=name), value=HostStatus(standing=Standing(runs=list(runs), gpus=GPUS), servers=servers))


FLEET = [
    host("gpu1", run("kimi-1"), run("kimi-0", "draining 12")),
    host("gpu-box-two", run("kimi-1", "failed", cause="No server was ready for 1800 s.")),
    host("gpu3"),
]


def shown(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    monkeypatch.setenv("COLUMNS", str(width))
    show_status(Output(as_json=False), FLEET)
    said = capsys.readouterr()
    return said.out.splitlines(), said.err


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_words_and_numbers_are_not_split_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, notes = shown(width, monkeypatch, capsys)
    assert max(map(cell_len, lines)) <= width
    rows = [line for line in lines if line.startswith(("gpu1", "gpu-box-two"))]
    assert len(rows) == 3
    assert all("11,204/18,656" in line for line in rows)
    assert any("draining 12" in line for line in rows)
    assert ("Columns left out at this width: waited" in notes) is (width < 200)
    assert "gpu-box-two: kimi-1: No server was ready for 1800 s." in notes


def test_each_run_has_its_own_table_with_only_its_own_hosts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, _ = shown(200, monkeypatch, capsys)
    starts = {line: number for number, line in enumerate(lines) if line.startswith(("run ", "hosts "))}
    assert list(starts) == ["run kimi-0", "run kimi-1", "hosts that do not know this run"]
    first, second, third = starts.values()
    assert [line.split()[0] for line in lines[first + 2 : second]] == ["gpu1"]
    assert [line.split()[0] for line in lines[second + 2 : third]] == ["gpu1", "gpu-box-two"]
    assert lines[third + 2].split() == ["gpu3", "extract", "ready", "8", "x", "71", "of", "141", "GiB"]


@pytest.mark.parametrize("word", ["paused", "stopped", "complete", "waiting", "draining 3", "silent for 40 s"])
def test_a_run_without_progress_has_no_remaining_time(word: str) -> None:
    assert left_seconds(run("r", word)) is None
    assert " left" not in live_line(run("r", word)).text


def test_a_run_with_progress_has_a_remaining_time() -> None:
    assert left_seconds(run("r")) == pytest.approx(17_500_000 / 11_034)


def test_a_run_that_no_host_has_heard_of_is_wrong_usage_with_the_nearest_name() -> None:
    told = Outcome(Host(name="a"), value=HostStatus(standing=Standing(runs=[], others=["kimi-1"]), servers=NO_SERVERS))
    with pytest.raises(UsageError, match="None of these hosts knows the run 'kimi1'") as raised:
        _refuse_unheard("kimi1", [told])
    assert raised.value.remedy == "Did you mean 'kimi-1'?"
    _refuse_unheard("kimi1", [told, Outcome(Host(name="b"), error=HostError("It is gone."))])
    _refuse_unheard("", [told])


def test_a_failed_part_is_shown_and_counted() -> None:
    assert [any_failed(outcome.result) for outcome in FLEET] == [False, True, False]
    assert failure(run("r", "failed", cause="The disk is full.")) == "failed: The disk is full."
    assert failure(run("r", "complete", counts={"quarantined": 2})) == "2 records quarantined"
    assert failure(run("r", "complete")) == ""


def test_records_that_lie_between_two_hosts_are_counted_with_the_command_that_hands_them_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    complete = host("gpu1", run("kimi-1", "complete"))
    assert not any_failed(complete.result)
    complete.result.not_taken = {"kimi-1": {"gpu2": 1204}}
    assert any_failed(complete.result)
    show_status(Output(as_json=False), [complete])
    assert (
        "gpu1: kimi-1: 1,204 records given to gpu2 did not arrive there, because a command was interrupted, so no host "
        "makes them: `inv extract --hosts all --run kimi-1` hands them over."
    ) in " ".join(capsys.readouterr().err.split())
