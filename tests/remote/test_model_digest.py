"""One digest for a model: equal for equal files in any folder, and different after any change that matters."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from remote import model_digest as digests
from remote.model_digest import BLOCK_BYTES, BLOCKS, model_digest
from remote.shared.paths import Workdir

ROWS = 2 * BLOCKS * BLOCK_BYTES // 4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two weight files, one of which is larger than all of its sampled blocks."""
    folder = tmp_path / "it's a model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "README.md").write_text("hello")
    save_file({"big": torch.arange(ROWS, dtype=torch.float32)}, folder / "model-00001.safetensors")
    save_file({"small": torch.ones(3)}, folder / "model-00002.safetensors")
    return folder


def digest(folder: Path, tmp_path: Path, workdir: str = "work") -> str:
    return model_digest(folder, Workdir(tmp_path / workdir))


def test_a_copy_elsewhere_has_the_same_digest_despite_other_files(model: Path, tmp_path: Path) -> None:
    before = digest(model, tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (copy / "README.md").write_text("another")
    assert len(before) == 32
    assert digest(copy, tmp_path, "other work") == before


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "model-00002.safetensors"])
def test_a_changed_byte_of_a_small_file_is_another_model(model: Path, tmp_path: Path, name: str) -> None:
    before = digest(model, tmp_path)
    content = bytearray((model / name).read_bytes())
    content[-1] ^= 1
    (model / name).write_bytes(content)
    assert digest(model, tmp_path) != before


def test_a_weight_file_is_told_by_its_name_header_and_sampled_blocks(model: Path, tmp_path: Path) -> None:
    seen = {digest(model, tmp_path)}
    big = model / "model-00001.safetensors"
    for change in ({"other": torch.arange(ROWS, dtype=torch.float32)}, {"big": torch.arange(ROWS).float() + 1}):
        save_file(change, big)
        seen.add(digest(model, tmp_path))
    big.rename(model / "model-00003.safetensors")
    seen.add(digest(model, tmp_path))
    assert len(seen) == 4


def test_unchanged_files_are_not_read_again(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, read = digest(model, tmp_path), list[str]()
    original = digests._content

    def content(path: Path, size: int) -> str:
        read.append(path.name)
        return original(path, size)

    monkeypatch.setattr(digests, "_content", content)
    assert digest(model, tmp_path) == before
    assert read == []
    os.utime(model / "config.json", ns=(1, 1))
    assert digest(model, tmp_path) == before
    assert read == ["config.json"]


def test_a_damaged_cache_is_made_again(model: Path, tmp_path: Path) -> None:
    before = digest(model, tmp_path)
    (tmp_path / "work" / "models.json").write_text("[1")
    assert digest(model, tmp_path) == before
