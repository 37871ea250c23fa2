"""What a person sees of a diagnosis."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from hosts.console.output import Output
from hosts.doctor.findings import Diagnosis, green, red, yellow
from hosts.errors import HostError
from hosts.fleet import Outcome
from hosts.inventory.model import Host
from hosts.tasks.reach import diagnosis_line, show_findings
from remote.shared.messages.facts import Facts

FACTS = Facts.model_validate_json((Path(__file__).parent / "base.json").read_text())
FINDINGS = [
    green("machine", "box-1"),
    yellow("limits", "low", "Raise it."),
    red("gpus", "\x1b]0;gone\x07", "Look [x]."),
]


def _shown(as_json: bool) -> str:
    output = Output(as_json)
    output.out = Console(file=io.StringIO(), width=200, highlight=False)
    result = Diagnosis(facts=FACTS, network=None, findings=FINDINGS)
    outcomes = [Outcome(Host(name="gpu1"), result), Outcome[Diagnosis](Host(name="gpu2"), error=HostError("Gone."))]
    show_findings(output, outcomes)
    stream = output.out.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def test_findings_are_listed_below_their_host_with_their_remedies() -> None:
    lines = _shown(as_json=False).splitlines()
    assert lines[1] == "gpu1"
    assert [line.split()[:2] for line in lines[2:4]] == [["✓", "machine"], ["!", "limits"]]
    assert lines[4].split() == ["→", "Raise", "it."]
    assert lines[6].split() == ["→", "Look", "[x]."]
    assert "gpu2" not in "".join(lines)


def test_escapes_that_a_host_sends_are_shown_and_not_executed() -> None:
    assert "\x1b" not in _shown(as_json=False)


def test_json_gets_no_text() -> None:
    assert _shown(as_json=True) == ""


def test_the_headline_counts_the_worst_first() -> None:
    result = Diagnosis(facts=FACTS, network=None, findings=FINDINGS)
    assert diagnosis_line(result) == "1 red, 1 yellow, 1 green"
