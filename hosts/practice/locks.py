"""Writes the locked requirements: every package with its version and the digests of its files. `make locks` calls it.

Laptop's side, for maintainers. A lock's digests make sure that every install gets the same files from any registry; no
lock names a registry. torch, its companions and NVIDIA's packages are left out, because people choose a CPU or a CUDA
build of them; `engine/requirements-torch*.txt` pin their versions.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE = "hosts/practice/engine"
_CHOSEN = re.compile(r"(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==")
_HEADER = "# Written by `make locks`; do not edit. Install with: pip install --require-hashes -r FILE\n"


@dataclass(frozen=True)
class Part:
    """The input of one call of the resolver."""

    sources: tuple[str, ...]
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lock:
    """One locked file and the parts from which it is made."""

    target: str
    parts: tuple[Part, ...]


LOCKS = (
    Lock("requirements/venv.txt", (Part(("pyproject.toml",), ("--extra", "dev")),)),
    Lock(
        f"{ENGINE}/locked.txt",
        (
            Part(tuple(f"{ENGINE}/requirements{kind}.txt" for kind in ("", "-torch", "-dev"))),
            Part((f"{ENGINE}/requirements-bare.txt",), ("--no-deps",)),
        ),
    ),
    Lock("hosts/practice/ray/locked.txt", (Part(("hosts/practice/ray/requirements.txt",)),)),
)


def main() -> int:
    """Write every lock. If one cannot be resolved, print its name and return 1."""
    for lock in LOCKS:
        text = ""
        for part in lock.parts:
            print(f"{lock.target}: resolving {', '.join(part.sources)}", flush=True)
            found = _resolved(part)
            if found.returncode:
                print(f"{lock.target} was not written: {found.stderr.strip()}", file=sys.stderr)
                return 1
            text += without_chosen(found.stdout)
        (REPOSITORY / lock.target).write_text(_HEADER + text)
    return 0


def _resolved(part: Part) -> subprocess.CompletedProcess[str]:
    command = [
        *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
        *("--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate"),
        *(*part.options, *part.sources),
    ]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def without_chosen(text: str) -> str:
    """Return a lock's text without the packages whose build a person chooses."""
    blocks = re.split(r"(?m)^(?=\S)", text)
    return "".join(block for block in blocks if not _CHOSEN.match(block))


if __name__ == "__main__":
    sys.exit(main())
