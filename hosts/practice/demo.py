"""`make demo`, `inv practice demo`: the main job from end to end, each step a command that a user types. Laptop's side.

Removes what earlier demos left, starts the practice fleet, prints and runs one command after the other, and ends with a
summary. Each demo is a run with its own name. Writes only `.practice/`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hosts.errors import HostError, RoostError
from hosts.practice import fleet
from hosts.practice.corpus import write_corpus
from hosts.practice.paths import CODE, PracticePaths, is_clone, practice_root
from hosts.practice.readers import reader_python

READER = "speculators-0.9.0"
STEP_SECONDS = 1200.0
PREFIX = "demo-"


@dataclass(frozen=True)
class Step:
    """One command of the demo."""

    command: str
    seconds: float


class Demo:
    """One demo: its run, its folders and the steps done so far."""

    def __init__(self, paths: PracticePaths, console: Console) -> None:
        self.paths = paths
        self.run = f"{PREFIX}{datetime.now():%Y%m%d-%H%M%S}"
        self.console = console
        self.program = "inv" if is_clone(CODE) else "roost"
        self.folder = CODE if is_clone(CODE) else paths.root
        """The folder in which the commands run: `inv` needs the clone's `tasks.py`."""
        self.steps: list[Step] = []

    @property
    def inventory(self) -> Path:
        return self.paths.inventory

    @property
    def left(self) -> str:
        """A sentence on what is left after a step that failed."""
        return f"The practice fleet keeps running; {self.program} practice down ends it."

    @property
    def stays(self) -> str:
        """A sentence on what stays after a demo without failures."""
        return (
            "The practice fleet stays up: export ROOST_INVENTORY=.practice/inventory.yaml "
            f"(end: {self.program} practice down)"
        )

    @property
    def dataset(self) -> Path:
        return self.paths.demos / self.run / "dataset"

    @property
    def destination(self) -> Path:
        return self.paths.demos / self.run / "pulled"

    def begin(self) -> None:
        """Remove and print what earlier demos left, start the fleet and write its sample text."""
        paths, console = self.paths, self.console
        for line in fleet.down(paths.root):
            console.print(f"Left by an earlier demo: {line}")
        for left in [*paths.demos.glob(f"{PREFIX}*"), *paths.folder.glob(f"hosts/*/home/roost/runs/{PREFIX}*")]:
            console.print(f"Left by an earlier demo: removed {left.relative_to(paths.root)}")
            shutil.rmtree(left)
        fleet.build_engine(paths.root)
        hosts = fleet.up(paths.root)
        console.print(f"Practice fleet: {', '.join(f'{host.name} (ssh port {host.ssh_port})' for host in hosts)}")
        console.print(f"Practice text: {write_corpus(paths.corpus)} conversations from Python's own docstrings")

    def type_everything(self) -> None:
        """Run all commands in order; raises HostError at the first command that fails."""
        self.type("doctor", "--hosts", "all")
        self.type("prepare", "--input", self.short(self.paths.corpus), "--out", self.short(self.dataset))
        self.type("plan", "--hosts", "all", "--dataset", self.short(self.dataset), "--run", self.run)
        self.type("deploy", "--hosts", "all")
        self.type("serve", "--hosts", "all")
        self.type("extract", "--hosts", "all", "--run", self.run)
        self.type("status", "--hosts", "all", "--run", self.run)
        self.type("logs", "--hosts", "all", "--lines", "5")
        self.type("pull", "--hosts", "all", "--run", self.run, "--to", self.short(self.destination))
        self.type("verify", "--folder", self.short(self.destination))
        self.type("stop", "--hosts", "all")

    def type(self, task: str, *arguments: str) -> None:
        """Print a command and run it with its output on this terminal."""
        line = shlex.join([self.program, task, *arguments])
        self.console.print(f"\n$ {line}", style="bold green", markup=False)
        command = [str(Path(sys.executable).parent / self.program), task, *arguments]
        environment = {**os.environ, "ROOST_INVENTORY": self.short(self.inventory)}
        started = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                timeout=STEP_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise HostError(f"`{line}` did not end within {STEP_SECONDS:.0f} s.") from error
        self.steps.append(Step(line, time.monotonic() - started))
        if done.returncode:
            raise HostError(
                f"`{line}` ended with {done.returncode}.",
                remedy=self.left,
            )

    def summary(self) -> Table:
        """Summarise the demo from the files that it wrote."""
        manifest = json.loads((self.dataset / "manifest.json").read_text())
        shards = list((self.destination / "hidden_states").glob("hs_*.safetensors"))
        extraction = next(step.seconds for step in self.steps if step.command.split()[1] == "extract")
        table = Table(box=None, show_header=False, pad_edge=False, title=f"\n{self.run}", title_justify="left")
        table.add_row("records", f"{len(shards):,} of {manifest['records']:,}")
        table.add_row("tokens", f"{manifest['tokens']:,}")
        table.add_row("bytes", f"{sum(shard.stat().st_size for shard in shards):,}")
        table.add_row(
            "tokens/s", f"{manifest['tokens'] / extraction:,.0f} over {extraction:.0f} s of {self.program} extract"
        )
        table.add_row("commands", f"{sum(step.seconds for step in self.steps):.0f} s")
        return table

    def open_a_record(self) -> str:
        """Open the middle record with the trainer speculators, and return its tensors as text."""
        script = Path(__file__).parent / "engine" / "open_record.py"
        index = json.loads((self.dataset / "manifest.json").read_text())["records"] // 2
        command = [
            str(reader_python(READER, self.paths.root)),
            "-W",
            "ignore",
            str(script),
            str(self.destination),
            str(index),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise HostError(f"{READER} could not open record {index}: {said}")
        opened = json.loads(done.stdout)
        tensors = "\n".join(f"  {name}: {shape}" for name, shape in opened["tensors"].items())
        finite = "all finite" if opened["finite"] else "NOT all finite"
        return f"Record {index} of {opened['records']}, opened by {READER}'s ArrowDataset ({finite}):\n{tensors}"

    def short(self, path: Path) -> str:
        """Return the command as a person in the root folder would type it."""
        return str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)


def main(root: Path | None = None) -> int:
    """Run the demo of extraction."""
    return run_demo(Demo, root)


def run_demo(kind: Callable[[PracticePaths, Console], Demo], root: Path | None = None) -> int:
    """Run a demo with `root`'s `.practice` and `.engine`; return 1 after one sentence if a step fails."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        demo = kind(PracticePaths(root or practice_root()), console)
        demo.begin()
        demo.type_everything()
        console.print(demo.summary())
        console.print(demo.open_a_record())
    except RoostError as error:
        console.print(str(error), style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("\nInterrupted. The same command starts the demo again from the beginning.")
        return 130
    console.print(f"\n{demo.stays}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
