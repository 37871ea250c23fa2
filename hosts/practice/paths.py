"""Every path under `.practice/`; no other module of the practice fleet builds such a path. Laptop's side, pure."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

CODE = Path(__file__).resolve().parents[2]
"""The folder that holds the packages `hosts` and `remote`: a clone, or where pip installed Roost."""


def practice_root() -> Path:
    """Return the folder in which `.practice/` lies: the clone, or the current folder if Roost was installed by pip."""
    return CODE if is_clone(CODE) else Path.cwd()


def is_clone(folder: Path) -> bool:
    """Return whether Roost's sources and its Makefile are in this folder."""
    return (folder / "tasks.py").is_file() and (folder / "pyproject.toml").is_file()


@dataclass(frozen=True)
class PracticePaths:
    """The paths under a folder's `.practice/`, which holds every file of the practice fleet."""

    root: Path
    """The folder of `practice_root`."""

    @property
    def folder(self) -> Path:
        return self.root / ".practice"

    @property
    def state(self) -> Path:
        """The file with the started sshd processes, a `fleet.FleetState`."""
        return self.folder / "fleet.json"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory.yaml"

    @property
    def ssh_config(self) -> Path:
        """An empty OpenSSH configuration, because the practice fleet must not depend on the user's own."""
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def models(self) -> Path:
        return self.folder / "models"

    @property
    def corpus(self) -> Path:
        return self.folder / "conversations.jsonl"

    @property
    def local_workdir(self) -> Path:
        """Working directory of the inventory's `local`."""
        return self.folder / "local"

    @property
    def demos(self) -> Path:
        """One folder for each demo, with its dataset and its pulled shards."""
        return self.folder / "demos"

    @property
    def engine_python(self) -> Path:
        """The practice hosts' own Python."""
        return self.root / ".engine" / "bin" / "python"

    @property
    def readers(self) -> Path:
        return self.root / ".readers"

    def host(self, name: str) -> HostPaths:
        return HostPaths(self.folder / "hosts" / name, name)


@dataclass(frozen=True)
class HostPaths:
    """One practice host's folder: the files of its sshd, and its home."""

    folder: Path
    name: str

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def workdir(self) -> Path:
        """The path of `~/roost` on that host."""
        return self.home / "roost"

    @property
    def dump_dir(self) -> Path:
        """The dump directory in RAM. Its name has the user and the clone, because all users share /dev/shm."""
        clone = hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:8]
        return Path(f"/dev/shm/roost-practice-{os.getuid()}-{clone}-{self.name}")  # noqa: S108
