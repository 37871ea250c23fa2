"""The argument that every verb gets besides its request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remote.report import Report
from remote.shared.paths import Workdir


@dataclass(frozen=True)
class Context:
    """The verb's working directory, its report, the operator, and the payload of its code."""

    workdir: Workdir
    report: Report
    operator: str = ""

    @property
    def payload(self) -> Path:
        """The folder that holds this very `remote/` (a detached process is started with it on its path)."""
        return Path(__file__).resolve().parent.parent
