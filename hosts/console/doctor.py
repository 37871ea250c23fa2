"""What `inv doctor` prints: a table of findings a host, green, yellow and red, each with what to do."""

from __future__ import annotations

from collections.abc import Sequence

from hosts.commands.doctor import Diagnosis
from hosts.console.output import Output
from hosts.fleet import Outcome

MARKS = {"green": "✓", "yellow": "!", "red": "✗"}


def diagnosis_line(result: Diagnosis) -> str:
    """How many of each colour."""
    counts = {level: sum(finding.level == level for finding in result.findings) for level in MARKS}
    return ", ".join(f"{count} {level}" for level, count in counts.items() if count)


def show_findings(output: Output, outcomes: Sequence[Outcome[Diagnosis]]) -> None:
    """Every finding, in one table."""
    rows = [
        (outcome.host.name, MARKS[finding.level], finding.subject, _text(finding.text, finding.remedy))
        for outcome in outcomes
        if outcome.ok
        for finding in outcome.result.findings
    ]
    if rows:
        output.table(("host", "", "about", "finding"), rows)


def _text(text: str, remedy: str) -> str:
    return f"{text}. {remedy}" if remedy else text
