"""Measures what a patch costs in an SGLang that serves without capture: `inv bench` with a bare and a patched SGLang.

    .venv/bin/python -m benchmarks.dormant [--rounds 6]

There are two practice hosts, each with its own SGLang install (the practice engine's files, with the model files
copied). In a round one host's install is bare and the other's is patched (`inv attach --way patch`). Both serve in mode
`serve`, and `inv bench` measures one host while the other sleeps, in a changing order. In the next round the hosts
change roles. All measurements under one start of a server share the random effects of that start, so each start gives
one value. The time to first token is that of prefill, and `inv bench --compare` judges.

Writes the transcript to `benchmarks/results/dormant-<date>.md` and the numbers beside it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

from benchmarks.practice import Practice, practising
from hosts.bench.results import BenchResults
from hosts.inventory.kept import Kept

HOSTS = ("practice1", "practice2")
PROFILE = ("--profile", "single", "--prompt-tokens", "256", "--output-tokens", "64", "--repetitions", "2")
ARMS = ("bare", "dormant")


def main() -> None:
    """Measure round by round; write comparison, transcript and numbers."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = options.parse_args()
    with practising(hosts=len(HOSTS)) as practice:
        give_installs(practice)
        for number in range(given.rounds):
            bare, patched = HOSTS if number % 2 == 0 else HOSTS[::-1]
            measure(practice, {"bare": bare, "dormant": patched}, ARMS if number % 4 < 2 else ARMS[::-1])
        practice.inv("bench", "--compare", "*/bare*,*/dormant*")
        write(given.out, practice)


def measure(practice: Practice, host_of: dict[str, str], order: tuple[str, ...]) -> None:
    """One round: serve both, measure them in this order, stop both and leave both installs bare."""
    practice.inv("attach", "--host", host_of["dormant"], "--way", "patch")
    practice.inv("serve", "--hosts", "all", "--mode", "serve")
    for arm in order:
        practice.inv("bench", "--host", host_of[arm], *PROFILE, "--label", arm)
    practice.inv("stop", "--hosts", "all")
    practice.inv("detach", "--host", host_of["dormant"])


def give_installs(practice: Practice) -> None:
    """Give each host its own SGLang, imported before the engine's: copies of the model files, and links to all else."""
    python = str(practice.paths.engine_python)
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    engine = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    text = practice.paths.inventory.read_text()
    for host in HOSTS:
        site = practice.paths.root / f"{host}-site"
        for folder, own in (("sglang", "srt"), ("sglang/srt", "models")):
            (site / folder).mkdir(parents=True)
            for child in (engine / folder).iterdir():
                if child.name not in (own, "__pycache__"):
                    (site / folder / child.name).symlink_to(child)
        shutil.copytree(engine / "sglang/srt/models", site / "sglang/srt/models")
        for metadata in engine.glob("sglang-*.dist-info"):
            shutil.copytree(metadata, site / metadata.name)
        text = text.replace(f"  {host}:\n", f"  {host}:\n    env: {{PYTHONPATH: '{site}'}}\n    ready_timeout: 1200\n")
    practice.paths.inventory.write_text(text)


def write(folder: Path, practice: Practice) -> None:
    """Write the transcript as Markdown and every kept result as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    kept = BenchResults(Kept(practice.paths.inventory.parent).bench)
    results = [kept.load(name) for name in kept.names()]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load average {load} at the end"
    lines = ["# A dormant patch against no patch", "", f"{machine}; SGLang {results[0].sglang} on CPU, {date}."]
    lines += ["`python -m benchmarks.dormant`", "", "```", *practice.transcript, "```"]
    (folder / f"dormant-{date}.md").write_text("\n".join(lines) + "\n")
    numbers = [
        {
            "host": result.host,
            "label": result.label,
            "capture": result.capture,
            "taken_at": result.taken_at,
            "measurements": [each.model_dump() for each in result.measurements],
        }
        for result in results
    ]
    document = {"machine": machine, "sglang": results[0].sglang, "torch": results[0].torch, "results": numbers}
    (folder / f"dormant-{date}.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
