"""The entry points: nothing happens while dormant, a model class is wrapped as soon as it is imported."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from remote.capture import hook

MODULE = "sglang.srt.models.llama"


def test_installing_imports_nothing_heavy(clone: Path) -> None:
    code = "import sys; from remote.capture.hook import install; install(); print(*sorted(sys.modules))"
    for directory in ("", "/nowhere"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            cwd=clone,
            env={"SGLANG_HS_DUMP_DIR": directory},
            capture_output=True,
            text=True,
            check=True,
        )
        assert not {"torch", "sglang", "transformers"} & set(found.stdout.split())


def test_dormant_without_a_dump_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_HS_DUMP_DIR", raising=False)
    before = list(sys.meta_path)
    hook.install()
    assert sys.meta_path == before


@pytest.fixture
def model_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that stands for one of SGLang's model files, not yet imported."""
    (tmp_path / "stand_in.py").write_text(
        "class LlamaModel:\n    def __init__(self, built):\n        built.append(self)\n\n"
        "class Derived(LlamaModel):\n    def __init__(self, built):\n"
        "        super().__init__(built)\n        self.layers = 'its own'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", "/nowhere")
    monkeypatch.setattr(hook, "MODEL_CLASSES", {"stand_in": "LlamaModel"})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "stand_in", raising=False)


@pytest.mark.usefixtures("model_module")
@pytest.mark.parametrize("imported_first", [True, False])
def test_a_model_is_attached_when_it_is_built(monkeypatch: pytest.MonkeyPatch, imported_first: bool) -> None:
    attached: list[object] = []
    monkeypatch.setattr("remote.capture.attachment.attach_to_model", attached.append)
    if imported_first:
        importlib.import_module("stand_in")
    hook.install()
    hook.install()
    module = importlib.import_module("stand_in")
    hook.install_in("stand_in")
    built: list[object] = []
    model = module.LlamaModel(built)
    assert built == [model]
    assert attached == [model]
    sys.modules.pop("stand_in")


@pytest.mark.usefixtures("model_module")
def test_a_model_is_built_even_if_capture_cannot_attach(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(model: object) -> None:
        raise ValueError("no such boundary")

    monkeypatch.setattr("remote.capture.attachment.attach_to_model", refuse)
    hook.install()
    importlib.import_module("stand_in").LlamaModel([])
    assert "Roost's capture is not active in this process" in caplog.text
    sys.modules.pop("stand_in")


@pytest.mark.usefixtures("model_module")
def test_a_derived_class_is_attached_once_after_its_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ministral's replaces its base's blocks behind the base's constructor; Qwen3's base is a family of its own."""
    seen: list[object] = []
    monkeypatch.setattr("remote.capture.attachment.attach_to_model", lambda model: seen.append(model.layers))
    monkeypatch.setattr(hook, "MODEL_CLASSES", {"stand_in": "LlamaModel"})
    hook.install()
    module = importlib.import_module("stand_in")
    hook._watch(module, "Derived")
    module.Derived([])
    module.Derived([])
    assert seen == ["its own", "its own"]
    sys.modules.pop("stand_in")
