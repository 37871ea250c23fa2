"""Lists Roost's data on a host's disk (runs, payloads, logs, leftovers of commands), and why each item must stay.

Runs on the host, called by `clean`. Read-only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from remote.context import Context
from remote.servers.lifecycle import logfile, records
from remote.servers.probing.handles import holders_of
from remote.shared.files import ASIDE, read_own
from remote.shared.messages.clean import Kind, Stored
from remote.shared.messages.extract import ExtractorState
from remote.shared.paths import JobPaths, RunPaths
from remote.shared.processes import find
from remote.work.ledger import Ledger


@dataclass(frozen=True)
class Found:
    """One item on the disk. `reason` says why it must always stay, `unpulled` how many records would be lost."""

    kind: Kind
    name: str
    path: Path
    reason: str = ""
    unpulled: int = 0

    def stored(self, kept: str) -> Stored:
        """Return the item for the answer."""
        size, changed = _weigh(self.path)
        return Stored(
            kind=self.kind,
            name=self.name,
            path=str(self.path.parent.resolve() / self.path.name),
            size_bytes=size,
            age_seconds=max(0.0, time.time() - changed),
            kept=kept,
        )


def find_stored(context: Context) -> list[Found]:
    """Return everything below the workdir that `clean` may remove."""
    return [*_runs(context), *_jobs(context), *_payloads(context), *_logs(context), *_unfinished(context)]


def _runs(context: Context) -> Iterator[Found]:
    for folder in _folders(context.workdir.runs):
        paths = RunPaths(folder)
        if folder.is_symlink():
            yield Found("run", folder.name, folder, f"it is a link to {folder.resolve()}: remove that folder")
            continue
        reason = "its extractor is running" if _is_at_work(paths) else ""
        yield Found("run", folder.name, folder, reason, _unpulled(paths))


def _jobs(context: Context) -> Iterator[Found]:
    """Return the folders of a cluster's jobs that run one verb each."""
    for folder in _folders(context.workdir.jobs):
        paths = JobPaths(folder)
        waits = paths.number.exists() and not (paths.ended.exists() or paths.told.exists())
        yield Found("job", folder.name, folder, "it may be in the cluster's queue" if waits else "")


def _is_at_work(paths: RunPaths) -> bool:
    try:
        state = ExtractorState.model_validate_json(read_own(paths.state))
    except FileNotFoundError:
        return False
    except (OSError, ValidationError):
        return True  # the state is another version's or another user's, so the run stays
    return find(state.process) is not None


def _unpulled(paths: RunPaths) -> int:
    """Return the number of finished records whose shards no pull has freed."""
    if not paths.ledger.exists():
        return 0
    with Ledger(paths.ledger, to_read=True) as ledger:
        return ledger.counts().done


def _payloads(context: Context) -> Iterator[Found]:
    used = _used_payloads(context)
    for folder in _folders(context.workdir.payloads):
        if not folder.is_symlink():
            yield Found("payload", folder.name, folder, used.get(folder.name, ""))


def _used_payloads(context: Context) -> dict[str, str]:
    """Return the payloads in use, with the reason: the newest, this process's own, and those of running processes."""
    root = context.workdir.payloads
    used = {path.resolve().name: "the newest payload" for path in [root / "current"] if path.exists()}
    used[context.payload.name] = "this command runs from it"
    for name in records.names(context.workdir):
        state = records.load(context.workdir.server(name))
        if state is not None and state.capture is not None and find(state.server) is not None:
            used[state.capture.payload] = f"server {name} captures with it"
    for process, held in holders_of(set(), (str(root.resolve()),)):
        for path in held:
            digest = Path(path).relative_to(root.resolve()).parts[:1]
            used.update(dict.fromkeys(digest, f"pid {process.pid} runs from it"))
    return used


def _logs(context: Context) -> Iterator[Found]:
    """Return every server log of this workdir except the newest, including those in a `log_dir`."""
    for name in records.names(context.workdir):
        paths = context.workdir.server(name)
        for log in logfile.written(paths):
            newest = log == paths.current_log.resolve()
            yield Found("log", name, log, "the server's newest log" if newest else "")


def _unfinished(context: Context) -> Iterator[Found]:
    for parent in (context.workdir.runs, context.workdir.payloads):
        for left in parent.glob(f"{ASIDE}*") if parent.is_dir() else ():
            yield Found("unfinished", left.name, left)


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))


def _weigh(path: Path) -> tuple[int, float]:
    """Return the bytes on disk below `path` and the time of the newest change.

    A ledger's time is ignored, because reading a ledger changes it.
    """
    status = path.lstat()
    if path.is_symlink() or not path.is_dir():
        return status.st_blocks * 512, status.st_mtime
    size, changed = 0, 0.0
    for file in path.rglob("*"):
        try:
            inner = file.lstat()
        except FileNotFoundError:
            continue
        size += inner.st_blocks * 512
        if not file.is_dir() and not file.name.startswith("ledger.sqlite"):
            changed = max(changed, inner.st_mtime)
    return size, changed or status.st_mtime
