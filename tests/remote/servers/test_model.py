"""A model folder that cannot be served is refused in one sentence before a server starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from remote.servers.probing.model import check_format, check_model, depth
from remote.shared.errors import HostError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "architectures": ["X"]}))
    for block in range(2):
        name = f"language_model.model.layers.{block}.mlp.weight"
        save_file({name: np.zeros((4, 4), dtype=np.float32)}, folder / f"model-{block}.safetensors")
    return folder


def cut(model: Path) -> None:
    file = model / "model-0.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def pointer(model: Path) -> None:
    (model / "model-0.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 12\n")


def without_a_block(model: Path) -> None:
    (model / "model-1.safetensors").unlink()


def without_an_indexed_file(model: Path) -> None:
    index = {"weight_map": {"a": "model-0.safetensors", "b": "model-7.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def without_weights(model: Path) -> None:
    for file in model.glob("*.safetensors"):
        file.unlink()


def without_config(model: Path) -> None:
    (model / "config.json").unlink()


def with_broken_config(model: Path) -> None:
    (model / "config.json").write_text('{"num_hidden_layers": 2')


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (cut, "is damaged: it has 160 bytes, but its header says 168"),
        (pointer, "Git LFS pointer"),
        (without_a_block, r"lack block 1 \(1 of 2 are missing\)"),
        (without_an_indexed_file, "lacks 1 of its weight files, model-7.safetensors among them"),
        (without_weights, r"\*\.safetensors among them"),
        (without_config, "no config.json"),
        (with_broken_config, "is not JSON"),
    ],
)
def test_damage_to_a_model_is_named(model: Path, harm: Callable[[Path], None], said: str) -> None:
    harm(model)
    with pytest.raises(HostError, match=said):
        check_model(str(model))


def test_a_whole_model_gives_its_config(model: Path) -> None:
    assert check_model(str(model))["architectures"] == ["X"]


def test_a_missing_folder_is_located(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="there is no such folder") as caught:
        check_model(str(tmp_path / "mnt" / "kimi"))
    assert f"{tmp_path} exists, but mnt in it does not" in caught.value.message


def test_the_depth_of_a_wrapped_language_model_is_found() -> None:
    assert depth({"text_config": {"num_hidden_layers": 61}}) == 61
    with pytest.raises(HostError, match="num_hidden_layers"):
        depth({})


@pytest.mark.parametrize(
    ("config", "beside"),
    [
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, None),
        ({"text_config": {"quantization_config": {"format": "nvfp4-pack-quantized"}}}, None),
        ({}, {"quantization": {"quant_algo": "NVFP4"}}),
    ],
    ids=["config.json", "a wrapped model's", "a file of its own"],
)
def test_nvfp4_is_refused_on_hopper_in_one_sentence(tmp_path: Path, config: Any, beside: Any) -> None:
    if beside:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    with pytest.raises(HostError, match="NVFP4, which needs a Blackwell GPU; this server has NVIDIA H200"):
        check_format(str(tmp_path), config, ["NVIDIA H200"])
    check_format(str(tmp_path), config, ["NVIDIA B200"])
    check_format(str(tmp_path), config, [])


def test_other_quantisations_are_let_through(tmp_path: Path) -> None:
    for said in ({"quant_method": "fp8"}, {"quant_method": "mxfp4"}, {"format": "pack-quantized"}):
        check_format(str(tmp_path), {"quantization_config": said}, ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"])
