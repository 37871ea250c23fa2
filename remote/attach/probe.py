"""Finds the SGLang that a Python imports, without importing it. Host side; changes nothing.

`find_installation` asks a process with a server's environment and folder, because a checkout on PYTHONPATH and a wheel
in site-packages can coexist, and only the import order decides. Called by the verbs and by every start.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remote.attach.cache import fingerprint
from remote.attach.interpreter import Interpreter
from remote.shared.errors import HostError
from remote.shared.messages.attach import Installation

_VERSION = re.compile(r"^__version__\s*=\s*(?:version\s*=\s*)?['\"]([^'\"]+)['\"]", re.MULTILINE)


def find_installation(
    *, payload: Path, python: str = sys.executable, env: Mapping[str, str] | None = None, cwd: Path = Path("/")
) -> Installation:
    """Find the SGLang that a server started with this Python, environment and folder would import.

    Raises HostError if there is none.
    """
    interpreter = Interpreter(payload, env or {}, python, cwd)
    answer = interpreter.ask("remote.attach.probe:describe", {}, deadline=60.0)
    if "package" not in answer:
        raise HostError(
            f"There is no sglang in the host's Python, {python}.",
            remedy="Set `python` in the inventory to the interpreter that runs SGLang.",
        )
    return Installation(python=python, **answer)


def describe(_question: dict[str, Any]) -> dict[str, object]:
    """Return the package that this interpreter would import as `sglang`; empty if there is none."""
    spec = importlib.util.find_spec("sglang")
    folders = [Path(folder).resolve() for folder in (spec.submodule_search_locations or [])] if spec else []
    package = next((folder for folder in folders if (folder / "srt").is_dir()), None)
    if package is None:
        return {}
    others = [str(other) for other in _packages_on_path() if other != package]
    return {**look_at(package), "others": others, "fingerprint": fingerprint(package, sys.path)}


def look_at(package: Path) -> dict[str, object]:
    """Describe one `sglang` package by its files."""
    metadata = _metadata(package)
    return {
        "version": _version(package, metadata),
        "package": str(package),
        "metadata": str(metadata) if metadata else None,
        "editable": package.parent not in _site_packages(),
        "has_plugins": _has_plugins(package),
        "writable": os.access(package / "srt" / "models", os.W_OK),
    }


def _site_packages() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(paths[key]).resolve() for key in ("purelib", "platlib")]


def _packages_on_path() -> list[Path]:
    found = [Path(entry).resolve() / "sglang" for entry in sys.path if entry]
    return list(dict.fromkeys(folder for folder in found if (folder / "srt").is_dir()))


def _metadata(package: Path) -> Path | None:
    """Return the package's metadata folder: beside it, or that of an editable install."""
    beside = [
        path
        for pattern in ("sglang-*.dist-info", "sglang.egg-info", "sglang-*.egg-info")
        for path in package.parent.glob(pattern)
    ]
    if beside:
        return max(beside, key=lambda path: path.stat().st_mtime)
    for distribution in importlib.metadata.distributions(name="sglang"):
        direct = distribution.read_text("direct_url.json") or ""
        folder = getattr(distribution, "_path", None)
        if folder is not None and any(str(parent) in direct for parent in list(package.parents)[:3]):
            return Path(folder)
    return None


def _version(package: Path, metadata: Path | None) -> str:
    """Return the version in the package, else in its metadata, which may belong to another copy."""
    for name in ("_version.py", "version.py"):
        file = package / name
        found = _VERSION.search(file.read_text()) if file.is_file() else None
        if found:
            return found.group(1)
    if metadata is not None:
        return importlib.metadata.PathDistribution(metadata).version
    return "unknown"


def _has_plugins(package: Path) -> bool:
    """Return whether SGLang has plugins and loads them in the processes that run the model."""
    scheduler = package / "srt" / "managers" / "scheduler.py"
    framework = package / "srt" / "plugins" / "__init__.py"
    return framework.is_file() and scheduler.is_file() and "load_plugins()" in scheduler.read_text()
