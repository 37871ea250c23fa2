"""The last norm and the head are read from any checkpoint, sharded, tied or wrapped, without its other weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from remote.parity.head import load_head
from remote.shared.errors import HostError

NORM, HEAD, EMBEDDING = torch.rand(4), torch.rand(9, 4), torch.rand(9, 4)


def write(folder: Path, config: dict[str, object], files: dict[str, dict[str, torch.Tensor]], index: bool) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in files.items():
        save_file(tensors, folder / name)
    if index:
        weights = {tensor: name for name, tensors in files.items() for tensor in tensors}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    return folder


def test_a_sharded_checkpoint_is_read_by_its_index(tmp_path: Path) -> None:
    files = {"a.safetensors": {"lm_head.weight": HEAD}, "b.safetensors": {"model.norm.weight": NORM}}
    head = load_head(write(tmp_path, {"rms_norm_eps": 1e-5}, files, index=True))
    assert torch.equal(head.lm_head, HEAD)
    assert torch.equal(head.norm_weight, NORM)
    assert head.eps == 1e-5


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    files = {"model.safetensors": {"model.embed_tokens.weight": EMBEDDING, "model.norm.weight": NORM}}
    head = load_head(write(tmp_path, {"tie_word_embeddings": True}, files, index=False))
    assert torch.equal(head.lm_head, EMBEDDING)


@pytest.mark.parametrize(
    ("head_name", "norm_name"),
    [
        ("language_model.lm_head.weight", "language_model.model.norm.weight"),  # Kimi-K2.5
        ("lm_head.weight", "model.language_model.norm.weight"),  # Qwen3-VL
    ],
)
def test_a_wrapped_language_model_is_found_by_its_names(tmp_path: Path, head_name: str, norm_name: str) -> None:
    tensors = {head_name: HEAD, norm_name: NORM}
    tensors["language_model.model.layers.7.shared_head.model.norm.weight"] = torch.zeros(4)
    tensors["model.visual.norm.weight"] = torch.zeros(4)
    head = load_head(write(tmp_path, {"text_config": {"rms_norm_eps": 1e-5}}, {"m.safetensors": tensors}, index=False))
    assert torch.equal(head.norm_weight, NORM)
    assert head.eps == 1e-5


def test_a_checkpoint_without_a_head_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, {}, {"m.safetensors": {"model.norm.weight": NORM}}, index=False)
    with pytest.raises(HostError, match=r"has no tensor lm_head\.weight"):
        load_head(folder)


FP8 = torch.rand(9, 4).to(torch.float8_e4m3fn)
PACKED = torch.full((9, 1), 0x76543210, dtype=torch.int32)


@pytest.mark.parametrize(
    ("tensors", "wanted"),
    [
        ({"lm_head.weight": FP8, "lm_head.weight_scale": torch.tensor([3.0])}, FP8.float() * 3),
        ({"lm_head.weight": FP8}, FP8.float()),
        (
            {
                "language_model.lm_head.weight_packed": PACKED,
                "language_model.lm_head.weight_scale": torch.full((9, 1), 2.0),
                "language_model.lm_head.weight_shape": torch.tensor([9, 8]),
            },
            2 * torch.arange(-8.0, 0.0).expand(9, 8),
        ),
    ],
    ids=["fp8 with a scale", "fp8", "packed int4"],
)
def test_a_quantised_head_is_the_matrix_that_it_stands_for(
    tmp_path: Path, tensors: dict[str, torch.Tensor], wanted: torch.Tensor
) -> None:
    norm = {"model.norm.weight": NORM.to(torch.bfloat16)}
    head = load_head(write(tmp_path, {}, {"m.safetensors": {**norm, **tensors}}, index=False))
    assert torch.equal(head.lm_head, wanted.to(torch.bfloat16))
    assert head.dtype == torch.bfloat16


def test_a_head_that_cannot_be_read_is_said_with_what_to_do(tmp_path: Path) -> None:
    tensors = {"model.norm.weight": NORM, "lm_head.qweight": torch.zeros(4, 9, dtype=torch.int32)}
    with pytest.raises(HostError, match=r"keeps lm_head\.qweight in a way that Roost cannot read.*`parity_rate: 0`"):
        load_head(write(tmp_path, {}, {"m.safetensors": tensors}, index=False))


def test_norms_of_one_plus_weight_have_the_one(tmp_path: Path) -> None:
    files = {"m.safetensors": {"lm_head.weight": HEAD, "model.norm.weight": NORM}}
    head = load_head(write(tmp_path, {"model_type": "gemma3_text"}, files, index=False))
    assert torch.equal(head.norm_weight, NORM + 1)
