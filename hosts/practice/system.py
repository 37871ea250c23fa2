"""`make system`: check the programs that a clone needs from the machine. Any Python 3, standard library only.

`system.py slurm` checks what the practice Slurm needs besides. As root on a Debian-like system, installs missing
programs with apt-get. Otherwise prints the command to type.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec

OLDEST_PYTHON = (3, 11)
SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Need:
    """A program or Python module, and the package that brings it on Debian and on a Mac (Homebrew)."""

    name: str
    debian: str
    brew: str

    def is_there(self) -> bool:
        """Return whether the program is on PATH or in an sbin folder, or whether this Python has the module."""
        if self.name.startswith("module "):
            return find_spec(self.name.removeprefix("module ")) is not None
        return shutil.which(self.name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}") is not None


SLURM = (
    Need("slurmctld", "slurm-wlm", "slurm"),
    Need("slurmd", "slurm-wlm", "slurm"),
    Need("sbatch", "slurm-wlm", "slurm"),
    Need("munged", "munge", "munge"),
    Need("unshare", "util-linux", "util-linux"),
    Need("ip", "iproute2", "iproute2"),
)
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
NEEDS = (
    Need("ssh", "openssh-client", "openssh"),
    Need("ssh-keygen", "openssh-client", "openssh"),
    Need("sshd", "openssh-server", "openssh"),
    Need("rsync", "rsync", "rsync"),
    Need("module ensurepip", f"python{VERSION}-venv", f"python@{VERSION}"),
)


def main(needs: tuple[Need, ...] = NEEDS) -> int:
    """Check the needs, install missing ones if allowed, and print in one sentence what a person has to type."""
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        print(f"Roost needs Python {oldest} or newer, and this is {VERSION}. Type: make PYTHON=python{oldest}")
        return 1
    missing = [need for need in needs if not need.is_there()]
    if not missing:
        return 0
    if shutil.which("apt-get") and os.geteuid() == 0:
        _apt_install(missing)
        missing = [need for need in missing if not need.is_there()]
    if missing:
        names = ", ".join(need.name for need in missing)
        print(f"This machine lacks {names}; type: {_command(missing)}")
    return 1 if missing else 0


def _apt_install(missing: list[Need]) -> None:
    packages = sorted({need.debian for need in missing})
    print(f"Installing {', '.join(packages)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *packages]):
        subprocess.run(["apt-get", *arguments], check=False, env=environment, stdin=subprocess.DEVNULL)


def _command(missing: list[Need]) -> str:
    if shutil.which("brew"):
        return f"brew install {' '.join(sorted({need.brew for need in missing}))}"
    packages = " ".join(sorted({need.debian for need in missing}))
    return f"sudo apt-get install {packages} (or your system's packages of these programs)"


if __name__ == "__main__":
    sys.exit(main(SLURM if sys.argv[1:] == ["slurm"] else NEEDS))
