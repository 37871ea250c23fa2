"""What the dump directories hold, and how long prefill waited for them; read-only, for `status`. Runs on the host."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from remote.servers.lifecycle import records
from remote.shared.files import read_own
from remote.shared.messages.capture import CaptureStatus
from remote.shared.paths import Workdir
from remote.shared.processes import find


def dump_dirs(workdir: Workdir) -> set[Path]:
    """Dump directories of this host's servers that run."""
    states = (records.load(workdir.server(name)) for name in records.names(workdir))
    return {
        Path(state.capture.dump_dir)
        for state in states
        if state is not None and state.capture is not None and find(state.server) is not None
    }


def held_bytes(directories: Iterable[Path]) -> int:
    """Bytes of dumps, whole or being written."""
    return sum(_size(path) for directory in directories if directory.is_dir() for path in directory.iterdir())


def wait_seconds(directories: Iterable[Path]) -> float:
    """Seconds that forward passes waited for capture, of the rank that waited longest: ranks wait at the same time."""
    statuses = (_status(path) for directory in directories for path in directory.glob(".capture-*.json"))
    waits = (found.directory_wait_seconds + found.ring_wait_seconds for found in statuses if found is not None)
    return max(waits, default=0.0)


def _status(path: Path) -> CaptureStatus | None:
    try:
        return CaptureStatus.model_validate_json(read_own(path))
    except (OSError, ValidationError):
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
