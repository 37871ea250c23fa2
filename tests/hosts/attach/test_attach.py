"""Attach, attached and detach from the laptop's side to a host's SGLang, over the local backend."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context
from invoke.tasks import Task

from hosts.console.attach import attach_line, attached_line, detach_line, is_amiss, is_strange, probe_line
from hosts.tasks.attaching import attach, attached, detach
from remote.shared.messages.attach import AttachReport, ProbeReport
from tests.remote.attach.installs import MODULES, make_install


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_install(tmp_path / "it's a site" / "packages")


class Hosts:
    """Two hosts of one folder each: one with SGLang on its path, one whose Python has none."""

    def __init__(self, folder: Path, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
        common = {"connection": "local", "python": sys.executable}
        good = {"workdir": str(folder / "good"), "env": {"PYTHONPATH": str(site)}, **common}
        bare = {"workdir": str(folder / "bare"), **common}
        self._inventory = folder / "inventory.yaml"
        self._inventory.write_text(json.dumps({"hosts": {"good": good, "bare": bare}}))
        self._capsys = capsys

    def answers(self, task: Task[Any], hosts: str, **options: Any) -> dict[str, Any]:
        """Run the task as `inv … --json` does and return every host's answer or error, by name."""
        with suppress(SystemExit):  # an error of a host is part of the answer
            task(Context(), hosts=hosts, inventory=str(self._inventory), json=True, **options)
        printed: dict[str, dict[str, Any]] = json.loads(self._capsys.readouterr().out)
        return printed["hosts"]

    def report(self, task: Task[Any], **options: Any) -> AttachReport:
        """The answer of the host that has SGLang."""
        return AttachReport.model_validate(self.answers(task, "good", **options)["good"]["value"])


@pytest.fixture
def hosts(tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str]) -> Hosts:
    return Hosts(tmp_path, site, capsys)


def test_a_patched_host_is_restored_and_a_host_without_sglang_does_not_affect_it(hosts: Hosts, site: Path) -> None:
    models = site / "sglang" / "srt" / "models"
    before = {path.name: path.read_bytes() for path in models.glob("*.py")}

    planned = hosts.answers(attach, "good,bare", dry_run=True)
    assert planned["bare"]["error"]["message"] == f"There is no sglang in the host's Python, {sys.executable}."
    assert attach_line(AttachReport.model_validate(planned["good"]["value"]), dry_run=True).endswith(
        "patch (SGLang 0.5.10.post1 loads no plugins); 4 files would be patched"
    )
    assert {path.name: path.read_bytes() for path in models.glob("*.py")} == before

    done = hosts.report(attach)
    assert attach_line(done).endswith("; 4 files patched")
    assert [check.file for check in done.checks] == [str(models / "deepseek_v2.py")]
    assert all(check.attached for check in done.checks)
    assert hosts.report(attach).changed == []

    seen = hosts.report(attached)
    assert {file.state for file in seen.files} == {"attached"}
    assert f"is imported from {models / 'deepseek_v2.py'}" in attached_line(seen)
    assert not is_amiss(seen)

    assert detach_line(hosts.report(detach)).endswith("4 files restored")
    assert {path.name: path.read_bytes() for path in models.glob("*.py")} == before
    assert len(before) == len(MODULES) + 1


def test_an_edited_file_stops_the_host_and_the_error_shows_its_lines(hosts: Hosts, site: Path) -> None:
    hosts.report(attach)
    file = site / "sglang" / "srt" / "models" / "llama.py"
    file.write_bytes(file.read_bytes() + b"mine = 1\n")
    error = hosts.answers(detach, "good")["good"]["error"]
    assert "was edited after Roost's block went in, and was not restored" in error["message"]
    assert "+mine = 1" in str(error["details"]["lines"])
    assert is_amiss(hosts.report(attached, imports=False))


@pytest.mark.parametrize(
    ("fields", "line", "strange"),
    [
        ({"served": "llama", "model_class": "LlamaModel", "shape": "a sum", "near": ["llama"]}, "captured, by", False),
        ({"refused": "it has two streams"}, "A: not captured: it has two streams; SGLang 1 has no loop for it", True),
        ({"model_class": "M", "shape": "a sum", "near": ["llama", "qwen2"]}, "a sum, as in llama and qwen2", False),
        ({"model_class": "M"}, "runs its blocks, in none of the known ways", True),
    ],
)
def test_a_probe_is_one_line(fields: dict[str, Any], line: str, strange: bool) -> None:
    report = ProbeReport.model_validate({"architecture": "A", "sglang": "1", "module": "m", **fields})
    assert line in probe_line(report)
    assert is_strange(report) is strange


def test_the_probe_asks_the_host_about_the_inventory_s_model(hosts: Hosts) -> None:
    """Neither host of this inventory names one."""
    with pytest.raises(SystemExit) as ended:
        attach(Context(), hosts="good", inventory=str(hosts._inventory), probe=True)
    assert ended.value.code
