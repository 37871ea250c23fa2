"""`pull --notify` notifies of each host; `deploy --wait` waits for another operator's command, and is one exec."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context

from hosts.commands.pull import Pulled
from hosts.errors import HostError
from hosts.fleet import Fleet, Outcome
from hosts.practice.paths import CODE, PracticePaths
from hosts.tasks import delivery, reach
from hosts.transport.local import LocalBackend
from hosts.transport.process import Process
from remote.shared.messages.attach import AttachRequest
from remote.shared.messages.transfer import HostTally


def inventory(folder: Path, **more: object) -> str:
    hosts = {name: {"connection": "local", "workdir": str(folder / name), **more} for name in ("a", "b")}
    (folder / "inventory.yaml").write_text(json.dumps({"hosts": hosts}))
    return str(folder / "inventory.yaml")


def test_a_pull_notifies_of_each_host_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told.jsonl"
    program = f"import sys; open({str(told)!r}, 'a').write(sys.stdin.read() + chr(10))"
    path = inventory(tmp_path, notify={"command": f'{sys.executable} -c "{program}"'})

    def pulled(fleet: Fleet, *_: Any) -> Pulled:
        one, two = fleet.hosts
        return Pulled("r", "/d", [Outcome(one, value=HostTally(delivered=3)), Outcome(two, error=HostError("Gone."))])

    monkeypatch.setattr("hosts.tasks.delivery.pulling.pull", pulled)
    with pytest.raises(SystemExit):
        delivery.pull(Context(), to="/d", run="r", hosts="all", notify=True, inventory=path)
    events = [json.loads(line) for line in told.read_text().splitlines()]
    assert [(event["event"], event["host"], event["subject"]) for event in events] == [
        ("finished", "a", "pull of r"),
        ("failed", "b", "pull of r"),
    ]
    assert events[0]["message"] == "3 records delivered, 0 failed"


@pytest.mark.parametrize("wait", [True, False])
def test_deploy_waits_for_the_lock_only_if_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    asked: list[bool] = []

    def call(self: LocalBackend, verb: str, request: Any, result: Any, **_: Any) -> Any:
        if isinstance(request, AttachRequest):
            asked.append(request.wait_for_lock)
            raise HostError("That is enough.")

    monkeypatch.setattr(LocalBackend, "call", call)
    with pytest.raises(SystemExit):
        reach.deploy(Context(), host="a", wait=wait, inventory=inventory(tmp_path))
    assert asked == [wait]


@pytest.mark.engine
def test_deploy_asks_a_host_in_one_exec_and_says_whether_the_payload_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[list[str]] = []
    really = LocalBackend.open

    def watched(self: LocalBackend, argv: list[str]) -> Process:
        opened.append(argv)
        return really(self, argv)

    monkeypatch.setattr(LocalBackend, "open", watched)
    path = inventory(tmp_path, python=str(PracticePaths(CODE).engine_python))
    for said in ("sent", "there already"):
        opened.clear()
        reach.deploy(Context(), host="a", inventory=path)
        assert f"{said})" in capsys.readouterr().out
        assert len(opened) == 1
