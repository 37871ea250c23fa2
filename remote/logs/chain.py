"""Runs on the host for `remote.logs`: finds the files of one source's log, oldest first. Reads names only.

A server writes one file for each start (`NAME_v1.log`, `NAME_v2.log`, …). A run's extractor appends to one file, which
an administrator's logrotate may rename (`extract.log.1` is newer than `extract.log.2`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from remote.shared.files import read_own
from remote.shared.messages.logs import LogSource
from remote.shared.messages.server import ServerState
from remote.shared.paths import ServerPaths, Workdir


@dataclass(frozen=True)
class Chain:
    """One source's log files."""

    source: LogSource
    _folder: Callable[[], Path]
    _age: Callable[[str], int | None]
    """Maps a file name to its place in time (greater is newer); None for a file of another log."""

    @property
    def folder(self) -> Path:
        return self._folder()

    def files(self) -> list[Path]:
        """Return the files that exist now, oldest first; empty before the first start."""
        try:
            names = [entry.name for entry in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        placed = [(age, name) for name in names if (age := self._age(name)) is not None]
        return [self.folder / name for _, name in sorted(placed)]

    def not_older(self, name: str, files: list[Path]) -> list[Path]:
        """Return the files at the place of the lost file `name`, or later."""
        lost = self._age(name)
        return [path for path in files if lost is None or (self._age(path.name) or 0) >= lost]


def chain(workdir: Workdir, source: LogSource) -> Chain:
    """Return the log files of `source` in `workdir`; raises UsageError for a name that cannot be a folder."""
    if source.kind == "run":
        log = workdir.run(source.name).log
        if source.task:
            log = workdir.run(source.name).jobs / f"{source.task}.log"
        return Chain(source, lambda: log.parent, _by_rotation(log.name))
    if source.kind == "job":
        log = workdir.job(source.name).log
        return Chain(source, lambda: log.parent, _by_rotation(log.name))
    paths = workdir.server(source.name)
    return Chain(source, lambda: _server_folder(paths), _by_start(source.name))


def expanded(workdir: Workdir, source: LogSource) -> list[LogSource]:
    """Return the source of a run's log, or the sources of its replicas' logs on a cluster."""
    folder = workdir.run(source.name).jobs if source.kind == "run" and not source.task else None
    if folder is None or not folder.is_dir():
        return [source]
    tasks = sorted(path.stem for path in folder.glob("*.log"))
    return [source.model_copy(update={"task": task}) for task in tasks] or [source]


def server_sources(workdir: Workdir) -> list[LogSource]:
    """Return the names of the servers that have a folder in `workdir`."""
    try:
        names = sorted(entry.name for entry in workdir.servers.iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []
    return [LogSource(kind="server", name=name) for name in names]


def _server_folder(paths: ServerPaths) -> Path:
    """Return the folder of the server's latest log, which may be the inventory's `log_dir`."""
    try:
        state = ServerState.model_validate_json(read_own(paths.state))
    except (OSError, ValidationError):
        return paths.logs
    return Path(state.log).parent


def _by_start(server: str) -> Callable[[str], int | None]:
    pattern = re.compile(re.escape(server) + r"_v(\d+)\.log")

    def age(name: str) -> int | None:
        match = pattern.fullmatch(name)
        return int(match.group(1)) if match else None

    return age


def _by_rotation(log: str) -> Callable[[str], int | None]:
    pattern = re.compile(re.escape(log) + r"(?:\.(\d+))?")

    def age(name: str) -> int | None:
        match = pattern.fullmatch(name)
        return -int(match.group(1) or 0) if match else None

    return age
