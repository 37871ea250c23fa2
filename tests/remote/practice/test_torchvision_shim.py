"""The engine's shim defines torchvision's operators only where torchvision's own library does not load."""

from __future__ import annotations

import _ctypes
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

SHIM = Path(__file__).parents[3] / "hosts/practice/engine/shims/roost_torchvision_schema.py"


@pytest.fixture
def shim(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    spec = importlib.util.spec_from_file_location("shim", SHIM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torchvision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder))
    return package / "_C.so"


def test_a_library_that_loads_brings_its_operators_itself(
    shim: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(_ctypes.__file__, torchvision(tmp_path, monkeypatch))
    assert shim._operators_load()


def test_a_library_that_does_not_load_brings_none(
    shim: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchvision(tmp_path, monkeypatch).write_bytes(b"built for another torch")
    assert not shim._operators_load()
