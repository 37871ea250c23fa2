"""Facts of hosts in all states, each with the findings that are no green (`cases/`, merged over `base.json`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hosts.doctor.findings import Diagnosis, Expectations, Network
from hosts.doctor.judge import judge
from remote.shared.messages.facts import Facts

FOLDER = Path(__file__).parent
CASES = sorted((FOLDER / "cases").glob("*.json"))


def merged(base: Any, changes: Any) -> Any:
    """`changes` over `base`, objects key by key, everything else whole."""
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return changes
    return {**base, **{key: merged(base.get(key), value) for key, value in changes.items()}}


def diagnosis(case: dict[str, Any]) -> Diagnosis:
    base = json.loads((FOLDER / "base.json").read_text())
    facts = Facts.model_validate(merged(base, case["facts"]))
    way = None if case["network"] is None else Network.model_validate(case["network"])
    findings = judge(facts, Expectations.model_validate(case["wanted"]), way)
    return Diagnosis(facts=facts, network=way, findings=findings)


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_every_case_has_exactly_its_findings(path: Path) -> None:
    case = json.loads(path.read_text())
    result = diagnosis(case)
    found = [finding for finding in result.findings if finding.level != "green"]
    assert [[finding.level, finding.subject] for finding in found] == [wanted[:2] for wanted in case["expect"]]
    for finding, (_, _, text) in zip(found, case["expect"], strict=True):
        assert text in finding.text
        assert finding.remedy, "what is wrong comes with what to do"
    assert result.is_red == any(wanted[0] == "red" for wanted in case["expect"])


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_a_finding_says_its_remedy_apart(path: Path) -> None:
    for finding in diagnosis(json.loads(path.read_text())).findings:
        assert finding.level != "green" or not finding.remedy
        assert not finding.text.endswith("  ")
