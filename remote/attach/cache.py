"""Keeps answers of the host's SGLang until something that they depend on changes.

Host side, used by `interpreter`. Importing SGLang takes 10 s and more. Whether capture is in it, and which flags its
parser accepts, stays the same until one of SGLang's files, a package beside it, the environment, the payload or the
boot changes. The name of an answer's file, `<workdir>/sglang-cache/<digest>.json`, is a digest of all of these.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from remote.shared.files import make_directory, write_whole

MOST_KEPT = 64
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_OF_THE_LOGIN = ("SSH_", "XDG_", "DBUS_", "LC_", "TERM", "LS_", "LESS")
_OF_THE_SHELL = {"_", "SHLVL", "PWD", "OLDPWD", "LANG", "MAIL", "COLUMNS", "LINES"}


def fingerprint(package: Path, path: list[str]) -> str:
    """Return a digest of what an import of `package` depends on: its files, and the packages on `path`."""
    digest = blake2b(digest_size=16)
    for folder, _, names in sorted(os.walk(package)):
        for name in sorted(names):
            if name.endswith((".py", ".so", ".json", ".yaml")):
                _add(digest, os.path.join(folder, name))  # noqa: PTH118 -- thousands of them
    for entry in path:
        found = Path(entry or ".")
        for installed in sorted(found.glob("*.*-info")) + sorted(found.glob("*.pth")):
            _add(digest, str(installed))
    return digest.hexdigest()


def _add(digest: Any, file: str) -> None:
    try:
        status = os.stat(file)  # noqa: PTH116
    except OSError:
        return
    digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))


def name(environment: Mapping[str, str], *parts: object) -> str:
    """Return the digest of a question and of everything that its answer depends on."""
    kept = {key: value for key, value in environment.items() if _matters(key)}
    boot = _BOOT.read_text() if _BOOT.exists() else ""
    text = json.dumps([boot, kept, *parts], sort_keys=True, default=str)
    return blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()


def _matters(variable: str) -> bool:
    return variable not in _OF_THE_SHELL and not variable.startswith(_OF_THE_LOGIN)


def recall(folder: Path, digest: str) -> dict[str, Any] | None:
    """Return the kept answer, or None."""
    try:
        found: dict[str, Any] = json.loads((folder / f"{digest}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found


def keep(folder: Path, digest: str, answer: Mapping[str, object]) -> None:
    """Keep an answer, and only the newest `MOST_KEPT` of all answers; errors of the disk are ignored."""
    try:
        make_directory(folder)
        write_whole(folder / f"{digest}.json", json.dumps(answer).encode())
        kept = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        for old in kept[MOST_KEPT:]:
            old.unlink(missing_ok=True)
    except OSError:
        return
