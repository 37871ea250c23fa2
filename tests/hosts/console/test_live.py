"""What is shown while hosts work: dead ones at once, silent ones by name, numbers with their total."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from hosts.console import live
from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.errors import HostUnreachableError
from hosts.fleet import Fleet
from hosts.inventory.model import Host, Inventory
from hosts.tasks.trusting import Trusted
from hosts.transport.backend import Backend
from remote.shared.messages.envelope import Progress

DEADLINE_SECONDS = 20.0


@pytest.fixture
def output() -> Output:
    found = Output(as_json=False)
    found.err = Console(file=io.StringIO(), highlight=False, soft_wrap=True)
    return found


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    hosts = [Host(name=name, connection="local") for name in ("dead", "slow")]
    return Fleet(Inventory(path=tmp_path, hosts={}, local=hosts[0]), hosts)


def said(output: Output) -> str:
    assert isinstance(output.err.file, io.StringIO)
    return output.err.file.getvalue()


def test_a_dead_host_is_reported_once_while_another_host_still_works(output: Output, fleet: Fleet) -> None:
    dead_is_told = threading.Event()
    error = output.error

    def tell(*words: object) -> None:
        error(*words)  # type: ignore[arg-type]
        dead_is_told.set()

    output.error = tell  # type: ignore[method-assign, assignment]

    def one(backend: Backend) -> Trusted:
        if backend.host.name == "dead":
            raise HostUnreachableError("It could not be reached.")
        assert dead_is_told.wait(DEADLINE_SECONDS)
        return Trusted(keys=[])

    with live_lines(output, fleet):
        outcomes = fleet.each(one)
    assert said(output).count("dead: It could not be reached.") == 1
    output.outcomes(outcomes)
    assert said(output).count("dead: It could not be reached.") == 1
    assert said(output).endswith("1 of 2 hosts failed: dead.\n")


def test_awaited_hosts_are_named_after_a_silence(output: Output, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "QUIET_SECONDS", 0.02)
    named = threading.Event()
    note = output.note

    def tell(text: str) -> None:
        note(text)
        if "waiting for slow" in text:
            named.set()

    output.note = tell  # type: ignore[method-assign]

    def one(backend: Backend) -> bool:
        return backend.host.name == "dead" or named.wait(DEADLINE_SECONDS)

    with live_lines(output, fleet):
        assert [outcome.value for outcome in fleet.each(one)] == [True, True]


def test_progress_says_how_many_of_how_many(output: Output, fleet: Fleet) -> None:
    with live_lines(output, fleet) as lines:
        lines(fleet.hosts[0], Progress(text="1,204 tokens/s", done=57, total=3000, unit="records"))
        lines(fleet.hosts[0], Progress(text="sending", done=512, total=2048, unit="bytes"))
    assert said(output).splitlines() == ["dead: 1,204 tokens/s, 57 of 3,000 records", "dead: sending, 512 B of 2.0 KiB"]
