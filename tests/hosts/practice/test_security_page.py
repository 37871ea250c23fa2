"""docs/security.md names tests that exist, `make attacks` runs them, and locks have what the requirements ask for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from hosts.practice.engine import install
from hosts.practice.locks import LOCKS, Lock, without_chosen
from tests.attacks.table import ATTACKS

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "security.md").read_text()


def test_every_attack_of_the_table_is_a_test() -> None:
    for attack in ATTACKS:
        for test in attack.tests:
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (REPOSITORY / file).read_text(), test


def test_every_promise_of_the_page_names_a_test_and_the_attacks_are_these_tests() -> None:
    promises = PAGE.partition("## What is promised")[2].partition("\n## ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ") and "promise" not in line]
    assert len(rows) > 10
    named = [re.findall(r"`(test_\w+)`", row) for row in rows]
    assert all(named), rows[named.index([])]
    attacks = {test.partition("::")[2] for attack in ATTACKS for test in attack.tests}
    assert {name for names in named for name in names} == attacks


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.target)
def test_a_lock_has_every_requirement_with_digests_and_no_address(lock: Lock) -> None:
    text = (REPOSITORY / lock.target).read_text()
    locked = dict(re.findall(r"(?m)^([a-z0-9._-]+)==([^\s;\\]+)", text))
    assert len(locked) > 50
    assert len(re.findall(r"(?m)^[^#\s]", text)) == len(
        re.findall(r"(?m)^[a-z0-9._-]+==[^\n]*\\\n    --hash=sha256:", text)
    )
    assert "://" not in text
    for line in asked_for(lock):
        wanted = Requirement(line)
        name = re.sub(r"[-_.]+", "-", wanted.name.lower())
        if not without_chosen(f"{name}==1\n"):
            assert name not in locked
            continue
        assert name in locked, f"{name} is not locked: `make locks`"
        assert wanted.specifier.contains(locked[name]), f"{line}, but locked at {locked[name]}: `make locks`"


def asked_for(lock: Lock) -> list[str]:
    """The requirements that a person wrote."""
    sources = [REPOSITORY / source for part in lock.parts for source in part.sources]
    lines = [line for path in sources if path.suffix == ".txt" for line in path.read_text().splitlines()]
    if lock.target.endswith("venv.txt"):
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
        lines += [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return [line for line in lines if line and not line.startswith("#")]


def test_packages_without_a_digest_are_pinned_by_version() -> None:
    """`install.py` installs the lock by digests; what people choose a build of has exact versions."""
    for path, options in install.STEPS:
        if "--require-hashes" not in options:
            lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
            assert lines
            assert all(str(Requirement(line).specifier).startswith("==") for line in lines)


def test_packages_that_a_person_chooses_are_left_out_of_a_lock() -> None:
    digest = " \\\n    --hash=sha256:00\n"
    left_out = "".join(f"{name}==2{digest}" for name in ("nvidia-nccl-cu13", "torch", "triton", "cuda-toolkit"))
    assert (
        without_chosen(f"# head\na==1{digest}{left_out}torchy==3{digest}") == f"# head\na==1{digest}torchy==3{digest}"
    )
