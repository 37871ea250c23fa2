"""A practice fleet for a benchmark, and the transcript of `inv` commands on it. Runs under the laptop's Python."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hosts.practice import fleet
from hosts.practice.paths import PracticePaths

CLONE = Path(__file__).resolve().parents[1]
STILL_WAITING = "waiting for "
"""Lines that `inv` prints from time to time while nothing happens. A transcript leaves them out."""


@dataclass
class Practice:
    """The fleet, and the transcript of the commands that were typed."""

    paths: PracticePaths
    transcript: list[str] = field(default_factory=list)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Type `inv WORDS`, with stdout and stderr in one stream."""
        self._say(f"$ inv {' '.join(words)}")
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "inv"), *words],
            cwd=CLONE,
            env={**os.environ, "ROOST_INVENTORY": str(self.paths.inventory), "COLUMNS": "160"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """End the commands that still run, before their fleet is taken down."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()

    def follow(self, process: subprocess.Popen[str]) -> int:
        """Add a command's output to the transcript until it ends; return its exit code."""
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith(STILL_WAITING):
                self._say(line.rstrip())
        return process.wait()

    def inv(self, *words: str) -> None:
        """Type `inv WORDS`; raise an error if it fails."""
        code = self.follow(self.start(*words))
        if code:
            raise SystemExit(f"inv {words[0]} ended with {code}")

    def note(self, text: str) -> None:
        """Add a remark to the transcript."""
        self._say(f"# {text}")

    def _say(self, line: str) -> None:
        shown = line.replace(str(self.paths.root), "~")
        self.transcript.append(shown)
        print(shown, flush=True)


@contextmanager
def practising(hosts: int) -> Iterator[Practice]:
    """Yield a fleet in a temporary folder, with this clone's engine and models. The fleet ends with the block."""
    with tempfile.TemporaryDirectory(prefix="roost-practice-") as folder:
        root = Path(folder)
        (root / ".practice").mkdir(mode=0o700)
        (root / ".engine").symlink_to(CLONE / ".engine")
        models = PracticePaths(CLONE).models
        models.mkdir(parents=True, exist_ok=True)
        (root / ".practice" / "models").symlink_to(models)
        fleet.up(root, hosts=hosts)
        practice = Practice(PracticePaths(root))
        try:
            yield practice
        finally:
            practice.end()
            fleet.down(root)
