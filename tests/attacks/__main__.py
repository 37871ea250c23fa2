"""`make attacks`: runs the tests of every attack under their side's Python, and prints the table with the outcomes.

Tests that act as a second user need root, because a process of theirs becomes that user. Without root they are skipped,
and the table says so. No test connects to another machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree  # the file is pytest's own

from tests.attacks.table import ATTACKS

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE_PYTHON = REPOSITORY / ".engine" / "bin" / "python"


def main() -> int:
    """Run all tests and print the table; return 1 if an attack succeeded or its test did not run."""
    tests = [test for attack in ATTACKS for test in attack.tests]
    outcomes: dict[str, Counter[str]] = {}
    for python, side in ((Path(sys.executable), "tests/hosts"), (ENGINE_PYTHON, "tests/remote")):
        outcomes |= _run(python, [test for test in tests if test.startswith(side)])
    failed = False
    for attack in ATTACKS:
        print(f"\n{attack.row}")
        for test in attack.tests:
            found = outcomes.get(test, Counter({"not run": 1}))
            failed |= bool(found["failed"] or found["not run"])
            print(f"  {', '.join(f'{count} {outcome}' for outcome, count in found.items()):<12} {test}")
    if os.geteuid() != 0:
        print("\nAttacks that need a second user were skipped, because only root can act as another user.")
    return int(failed)


def _run(python: Path, tests: Sequence[str]) -> dict[str, Counter[str]]:
    """Return the outcomes of each test. A test that runs with several inputs has as many outcomes."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", "-q", f"--junitxml={report}", "-o", "junit_family=xunit1", *tests]
        subprocess.run(command, cwd=REPOSITORY, check=False)
        if not report.exists():
            return {}
        found: dict[str, Counter[str]] = {}
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('file')}::{str(case.get('name')).partition('[')[0]}"
            found.setdefault(name, Counter())[_outcome(case)] += 1
        return found


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "held"


if __name__ == "__main__":
    sys.exit(main())
