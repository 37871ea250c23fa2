"""Removes dumps of earlier sessions, of abandoned attempts, and of runs without an extractor.

Runs on the host, called by the extractor. Deletes only in directories with Roost's marker, and only files whose request
id has a nonce of this run, or of another run of this host without an extractor.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from remote.shared.paths import DUMP_MARKER, RunPaths, Workdir
from remote.shared.shard.names import request_of
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import PREFIX, withdraw
from remote.work.lock import is_locked
from remote.work.session import PREFIX_CHARS, nonce_prefix


class Leftovers:
    """Finds files that a session may remove. `nonces` are those of the run's ledger, `current` is the session's own."""

    def __init__(self, workdir: Workdir, paths: RunPaths, nonces: Collection[str], current: str) -> None:
        self._workdir, self._paths, self._nonces, self._current = workdir, paths, nonces, current

    def sweep(self, directory: Path, in_flight: Collection[str]) -> int:
        """Delete the dumps whose id is not in flight; return how many files were deleted."""
        if not (directory / DUMP_MARKER).exists():
            return 0
        try:
            names = os.listdir(directory)  # noqa: PTH208 -- names alone
        except FileNotFoundError:
            return 0
        prefixes = self._prefixes()  # checked last: an extractor that starts now has not written these names
        removed = 0
        for name in names:
            if name.startswith(PREFIX):
                self._forget(directory, name, prefixes)
            rid = request_of(name)
            found = RequestId.parse(rid)
            if found is None or rid in in_flight:
                continue
            if found.nonce in self._nonces or found.nonce[:PREFIX_CHARS] in prefixes:
                (directory / name).unlink(missing_ok=True)
                removed += 1
        return removed

    def _forget(self, directory: Path, name: str, prefixes: Collection[str]) -> None:
        """Withdraw the registration of a killed session. The current session withdraws its own at its end."""
        nonce = name.removeprefix(PREFIX)
        if nonce != self._current and nonce[:PREFIX_CHARS] in prefixes:
            withdraw(directory, nonce)

    def _prefixes(self) -> set[str]:
        """Return the nonce prefixes of this run and of runs without an extractor."""
        runs = [self._workdir.run(name) for name in self._workdir.run_names()]
        return {nonce_prefix(run) for run in [self._paths, *(run for run in runs if _lies_still(run))]}


def _lies_still(run: RunPaths) -> bool:
    """Return whether no extractor runs; False if this is unknown, so that the run's dumps stay."""
    try:
        return not is_locked(run)
    except OSError:
        return False
