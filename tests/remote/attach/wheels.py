"""SGLang's real wheels: downloaded once without dependencies, laid out as pip would in a folder of the test's own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

VERSIONS = ("0.5.9", "0.5.10.post1", "0.5.14", "0.5.17", "0.5.20", "0.5.23")
EACH_VERSION = [
    pytest.param(version, marks=() if version in (VERSIONS[0], VERSIONS[-1]) else pytest.mark.long)
    for version in VERSIONS
]
"""For tests that import each release's SGLang, which takes long: `make test` tries the oldest and the newest."""
WITHOUT_PLUGINS = ("0.5.9", "0.5.10.post1")
CACHE = Path(__file__).resolve().parents[3] / ".wheels"
PLATFORM = "manylinux_2_34_x86_64"
PYTHON = "3.12"


class NoRegistry(Exception):
    """No package registry answered."""


def wheel(version: str) -> Path:
    """The cached wheel, downloaded where it is missing. Raises NoRegistry where it cannot be had."""
    if not _cached(version):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE)]
        command += ["--only-binary=:all:", "--python-version", PYTHON, "--platform", PLATFORM, f"sglang=={version}"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise NoRegistry(f"pip could not download sglang {version}: {run.stderr.strip().splitlines()[-1]}")
    return _cached(version)[0]


def _cached(version: str) -> list[Path]:
    return sorted(CACHE.glob(f"sglang-{version}-*.whl"))


def unpack(version: str, site: Path, *, whole: bool = False) -> Path:
    """Lay a wheel out in `site` as pip would and return the `sglang` folder.

    Its metadata and what attach looks at, or with `whole` all of it.
    """
    with zipfile.ZipFile(wheel(version)) as archive:
        wanted = [name for name in archive.namelist() if _is_wanted(name, whole)]
        archive.extractall(site, wanted)
    return site / "sglang"


def source(version: str, name: str) -> str:
    """One file of a wheel."""
    with zipfile.ZipFile(wheel(version)) as archive:
        return archive.read(name).decode()


def _is_wanted(name: str, whole: bool) -> bool:
    if whole:
        return True
    looked_at = ("sglang/srt/models/", "sglang/srt/plugins/", "sglang/srt/managers/scheduler.py")
    return ".dist-info/" in name or (name.endswith(".py") and (name.startswith(looked_at) or name.count("/") == 1))
