"""`make demo-answers`: prompts, answers, states and their check, end to end. Laptop's side.

Unlike in `make demo`, the model first answers prompts from the practice text, and the states are extracted from these
answers. Writes only `.practice/`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.table import Table

from hosts.practice.demo import Demo, run_demo

PROMPTS = 60
MOST_TOKENS = 48
"""Tokens of an answer. A tiny model with random weights rarely ends an answer by itself."""


class AnswersDemo(Demo):
    """A demo that begins with prompts."""

    @property
    def prompts(self) -> Path:
        return self.paths.demos / self.run / "prompts.jsonl"

    @property
    def answers(self) -> Path:
        return self.paths.demos / self.run / "answers"

    def type_everything(self) -> None:
        answers, states = f"{self.run}-a", self.run
        self.prompts.parent.mkdir(parents=True, exist_ok=True)
        lines = self.paths.corpus.read_text().splitlines(keepends=True)
        self.prompts.write_text("".join(lines[:PROMPTS]))
        self.type("deploy", "--hosts", "all")
        self.type("serve", "--hosts", "all", "--mode", "serve")
        asked = ["--input", self.short(self.prompts), "--run", answers, "--max-tokens", str(MOST_TOKENS)]
        self.type("answer", "--hosts", "all", *asked, "--temperature", "0")
        self.type("pull", "--hosts", "all", "--run", answers, "--to", self.short(self.answers))
        self.type("inspect", "--dataset", self.short(self.answers), "--records", "0")
        self.type("stop", "--hosts", "all")
        self.type("prepare", "--input", self.short(self.answers), "--out", self.short(self.dataset))
        self.type("plan", "--hosts", "all", "--dataset", self.short(self.dataset), "--run", states)
        self.type("serve", "--hosts", "all")
        self.type("extract", "--hosts", "all", "--run", states)
        self.type("pull", "--hosts", "all", "--run", states, "--to", self.short(self.destination))
        self.type("verify", "--folder", self.short(self.destination))
        self.type("stop", "--hosts", "all")

    def summary(self) -> Table:
        table = super().summary()
        manifest = json.loads((self.answers / "roost" / "manifest.json").read_text())
        table.add_row("answered", f"{manifest['delivered']:,} of {manifest['records']:,} conversations")
        return table


if __name__ == "__main__":
    sys.exit(run_demo(AnswersDemo, *map(Path, sys.argv[1:2])))
