"""What every verb is given beside its request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remote.report import Report
from remote.shared.paths import Workdir


@dataclass(frozen=True)
class Context:
    """Where the verb works, how it reports, who asked, and which payload its code was started from."""

    workdir: Workdir
    report: Report
    operator: str = ""

    @property
    def payload(self) -> Path:
        """The folder that holds this very `remote/` (a detached process is started with it on its path)."""
        return Path(__file__).resolve().parent.parent
