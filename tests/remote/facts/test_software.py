"""Packages, SGLang, capture and the model, found without importing any of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from remote.facts import software
from remote.facts.software import model_facts, python_facts, torch_cuda


def test_torch_s_cuda_is_read_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "version.py").write_text("__version__ = '2.11.0'\ncuda: Optional[str] = '13.0'\nhip = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert torch_cuda() == "13.0"
    (package / "version.py").write_text("cuda: Optional[str] = None\n")
    assert torch_cuda() == ""


def test_a_missing_package_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "PACKAGES", ("psutil", "surely-no-such-package"))
    found = python_facts().packages
    assert found["psutil"]
    assert found["surely-no-such-package"] is None


def test_an_absent_model_is_a_sentence_with_a_remedy(tmp_path: Path) -> None:
    found = model_facts(str(tmp_path / "nowhere"))
    assert "there is no such folder" in found.problem
    assert found.remedy


def test_a_wrapped_model_s_own_sizes_are_found(tmp_path: Path) -> None:
    inner = {"num_hidden_layers": 0, "hidden_size": 7168, "max_position_embeddings": 262144}
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": inner}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    found = model_facts(str(tmp_path))
    assert found.problem == ""
    assert (found.architecture, found.captured) == ("KimiK25ForConditionalGeneration", True)
    assert (found.layers, found.hidden_size, found.context_length) == (0, 7168, 262144)
    assert found.weight_bytes == 10
