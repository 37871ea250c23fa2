"""Output of `inv doctor`: a block for each host, with a line for each finding and its remedy below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from hosts.console.output import Output
from hosts.console.text import sentence
from hosts.doctor.findings import Diagnosis, Finding, Level
from hosts.fleet import Outcome

MARKS: dict[Level, str] = {"red": "✗", "yellow": "!", "green": "✓"}
SUBJECT_WIDTH = 14


def diagnosis_line(result: Diagnosis) -> str:
    """Return `1 red, 2 yellow, 9 green`."""
    counts = {level: result.count(level) for level in MARKS}
    return ", ".join(f"{count} {level}" for level, count in counts.items() if count)


def show_findings(output: Output, outcomes: Sequence[Outcome[Diagnosis]]) -> None:
    """Print every finding of every host that answered; with `--json` the document has them already."""
    if output.as_json:
        return
    for outcome in outcomes:
        if outcome.value is not None:
            output.out.print(Text(f"\n{outcome.host.name}", "bold"))
            for finding in outcome.value.findings:
                _show(output, finding)


def _show(output: Output, finding: Finding) -> None:
    mark = (MARKS[finding.level], finding.level)
    output.out.print(Text.assemble("  ", mark, f" {finding.subject:<{SUBJECT_WIDTH}} {sentence(finding.text)}"))
    if finding.remedy:
        output.out.print(Text.assemble(f"    {'':<{SUBJECT_WIDTH}} ", (f"→ {sentence(finding.remedy)}", "dim")))
