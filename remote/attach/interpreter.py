"""Calls a function in another process of the host's Python: JSON in on stdin, one JSON line out.

Host side, used only by the attach room. The function may import SGLang, which takes seconds and hundreds of megabytes,
and it must see the environment and working folder of a server start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote.attach import cache
from remote.shared.errors import HostError

MARK = "ROOST-ANSWER "
"""Marks the line of stdout that holds the answer."""
DEADLINE_SECONDS = 300.0
"""Importing SGLang from a cold network file system takes minutes."""


@dataclass(frozen=True)
class Interpreter:
    """The host's Python, with the environment of a server start."""

    payload: Path
    """The folder that holds `remote/`; it comes first on PYTHONPATH."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables added to this process's environment."""
    python: str = sys.executable
    cwd: Path = Path("/")
    cache: Path | None = None
    """The folder in which answers are kept; None keeps no answers."""
    fingerprint: str = ""
    """The fingerprint of the SGLang that is asked; "" keeps no answers."""

    def ask_once(
        self, function: str, question: Mapping[str, object], is_good: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """Ask like `ask`, but keep a good answer until something that it depends on changes."""
        if self.cache is None or not self.fingerprint:
            return self.ask(function, question)
        about = (function, question, self.python, str(self.cwd), self.payload.name, self.fingerprint)
        digest = cache.name({**os.environ, **self.env}, *about)
        answer = cache.recall(self.cache, digest)
        if answer is None:
            answer = self.ask(function, question)
            if is_good(answer):
                cache.keep(self.cache, digest, answer)
        return answer

    def ask(
        self, function: str, question: Mapping[str, object], *, deadline: float = DEADLINE_SECONDS
    ) -> dict[str, Any]:
        """Call `package.module:function` with `question` in another process and return its result.

        Raises HostError, with the last line of stderr, if there is no answer.
        """
        run = self._run(function, json.dumps(question), deadline)
        answers = [line for line in run.stdout.splitlines() if line.startswith(MARK)]
        if not answers:
            last = (run.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise HostError(f"{self.python} could not run {function}: {last} (exit code {run.returncode}).")
        answer: dict[str, Any] = json.loads(answers[-1].removeprefix(MARK))
        return answer

    def _run(self, function: str, question: str, deadline: float) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.env}
        environment["PYTHONPATH"] = prepend(str(self.payload), environment.get("PYTHONPATH", ""))
        try:
            return subprocess.run(
                [self.python, "-m", "remote.attach.child", function],
                input=question,
                env=environment,
                cwd=self.cwd,
                capture_output=True,
                text=True,
                timeout=deadline,
                check=False,
            )
        except OSError as error:
            raise HostError(
                f"{self.python} cannot be started: {error.strerror}.", remedy="Set `python` in the inventory."
            ) from error
        except subprocess.TimeoutExpired as error:
            raise HostError(f"{self.python} did not answer {function} within {deadline:.0f} s.") from error


def prepend(entry: str, path: str) -> str:
    """Put `entry` first on a PYTHONPATH-like list, once."""
    rest = [part for part in path.split(os.pathsep) if part and part != entry]
    return os.pathsep.join([entry, *rest])
