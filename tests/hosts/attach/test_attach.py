"""Attach, attached and detach from the laptop's side to a host's SGLang, over the local backend."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hosts.commands.attach import attach, attached, detach
from hosts.console.attach import attach_line, attached_line, detach_line, is_amiss
from hosts.fleet import Fleet
from hosts.inventory.model import Host, Inventory
from tests.remote.attach.installs import MODULES, make_install


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_install(tmp_path / "it's a site" / "packages")


@pytest.fixture
def fleet(tmp_path: Path, site: Path) -> Fleet:
    """Two hosts of one folder each: one with SGLang on its path, one whose Python has none."""
    common = {"connection": "local", "python": sys.executable}
    good = Host.model_validate(
        {"name": "good", "workdir": str(tmp_path / "good"), "env": {"PYTHONPATH": str(site)}, **common}
    )
    bare = Host.model_validate({"name": "bare", "workdir": str(tmp_path / "bare"), **common})
    hosts = {"good": good, "bare": bare}
    return Fleet(Inventory(path=tmp_path / "inventory.yaml", hosts=hosts, local=good), [good, bare])


def test_a_patched_host_is_put_back_and_a_host_without_sglang_costs_only_itself(fleet: Fleet, site: Path) -> None:
    models = site / "sglang" / "srt" / "models"
    before = {path.name: path.read_bytes() for path in models.glob("*.py")}

    planned, none = attach(fleet, dry_run=True)
    assert none.error is not None
    assert none.error.message == f"There is no sglang in the host's Python, {sys.executable}."
    assert attach_line(planned.result, dry_run=True).endswith(
        "patch (SGLang 0.5.10.post1 loads no plugins); 4 files would be patched"
    )
    assert {path.name: path.read_bytes() for path in models.glob("*.py")} == before

    fleet = fleet.narrowed(fleet.hosts[:1])
    (done,) = attach(fleet)
    assert attach_line(done.result).endswith("; 4 files patched")
    assert [check.file for check in done.result.checks] == [str(models / "deepseek_v2.py")]
    assert all(check.attached for check in done.result.checks)
    (again,) = attach(fleet)
    assert again.result.changed == []

    (seen,) = attached(fleet, imports=True)
    assert {file.state for file in seen.result.files} == {"attached"}
    assert f"is imported from {models / 'deepseek_v2.py'}" in attached_line(seen.result)
    assert not is_amiss(seen.result)

    (back,) = detach(fleet)
    assert detach_line(back.result).endswith("4 files put back")
    assert {path.name: path.read_bytes() for path in models.glob("*.py")} == before
    assert len(before) == len(MODULES) + 1


def test_an_edited_file_stops_the_host_and_its_lines_come_along(fleet: Fleet, site: Path) -> None:
    fleet = fleet.narrowed(fleet.hosts[:1])
    attach(fleet)
    file = site / "sglang" / "srt" / "models" / "llama.py"
    file.write_bytes(file.read_bytes() + b"mine = 1\n")
    (outcome,) = detach(fleet)
    assert outcome.error is not None
    assert "was edited after Roost's block went in, and was not restored" in outcome.error.message
    assert "+mine = 1" in str(outcome.error.details["lines"])
    (seen,) = attached(fleet, imports=False)
    assert is_amiss(seen.result)
