"""Quantised weights as plain matrices, held to the packers of those who make such checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from remote.parity import dequantise
from remote.parity.checkpoint import Checkpoint
from remote.shared.errors import HostError

ROWS, COLUMNS = 24, 64


def folder_of(tmp_path: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Checkpoint:
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    return Checkpoint(tmp_path)


def test_packed_integers_are_what_compressed_tensors_packed(tmp_path: Path) -> None:
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    integers = torch.randint(-8, 8, (ROWS, COLUMNS), dtype=torch.int8)
    scale = torch.rand(ROWS, COLUMNS // 32) + 0.5
    tensors = {
        "m.weight_packed": helpers.pack_to_int32(integers, 4),
        "m.weight_scale": scale.to(torch.bfloat16),
        "m.weight_shape": torch.tensor([ROWS, COLUMNS]),
    }
    checkpoint = folder_of(tmp_path, tensors)
    wanted = integers.float() * scale.to(torch.bfloat16).float().repeat_interleave(32, 1)
    assert list(checkpoint.names()) == ["m.weight"]
    assert torch.equal(checkpoint.read("m.weight"), wanted)


def test_mxfp4_experts_are_what_transformers_makes_of_them(tmp_path: Path) -> None:
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    blocks = torch.randint(0, 256, (2, 6, 2, 16), dtype=torch.uint8)
    scales = torch.randint(120, 130, (2, 6, 2), dtype=torch.uint8)
    checkpoint = folder_of(tmp_path, {"e.gate_up_proj_blocks": blocks, "e.gate_up_proj_scales": scales})
    assert list(checkpoint.names()) == ["e.gate_up_proj"]
    wanted = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(checkpoint.read("e.gate_up_proj"), wanted)


def test_awq_columns_come_out_of_their_interleaved_words(tmp_path: Path) -> None:
    """Packed here as AutoAWQ does: nibble i of a word is column order[i]."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(values: torch.Tensor) -> torch.Tensor:
        words = torch.zeros(values.shape[0], values.shape[1] // 8, dtype=torch.int64)
        for place, column in enumerate(order):
            words |= values[:, column::8].long() << (4 * place)
        return words.to(torch.int32)

    values, zeros = torch.randint(0, 16, (COLUMNS, ROWS)), torch.randint(0, 16, (2, ROWS))
    scales = (torch.rand(2, ROWS) + 0.5).half()
    tensors = {"m.qweight": pack(values), "m.qzeros": pack(zeros), "m.scales": scales}
    checkpoint = folder_of(tmp_path, tensors, quantization_config={"quant_method": "awq"})
    spread = [part.repeat_interleave(COLUMNS // 2, 0) for part in (zeros.float(), scales.float())]
    assert torch.equal(checkpoint.read("m.weight"), ((values.float() - spread[0]) * spread[1]).T)


@pytest.mark.parametrize(
    ("scale", "name"),
    [(torch.rand(2, 2), "weight_scale_inv"), (torch.rand(192, 1), "weight_scale"), (torch.rand(1), "weight_scale")],
    ids=["by block", "by row", "one"],
)
def test_fp8_is_multiplied_by_its_scales(tmp_path: Path, scale: torch.Tensor, name: str) -> None:
    weight = torch.randn(192, 160).to(torch.float8_e4m3fn)
    checkpoint = folder_of(tmp_path, {"m.weight": weight, f"m.{name}": scale})
    found = checkpoint.read("m.weight")
    for row, column in [(0, 0), (127, 128), (128, 127), (191, 159)]:
        factor = scale[row // 128, column // 128] if name.endswith("inv") else scale[row % len(scale)].squeeze()
        assert found[row, column] == weight[row, column].float() * factor


@pytest.mark.parametrize(
    "tensors",
    [
        {"m.qweight": torch.zeros(4, 9, dtype=torch.int32)},
        {"m.weight_packed": torch.zeros(4, 9, dtype=torch.uint8), "m.weight_global_scale": torch.ones(1)},
        {"m.weight": torch.zeros(4, 9, dtype=torch.int8)},
    ],
    ids=["GPTQ", "NVFP4", "INT8"],
)
def test_an_unknown_format_of_a_weight_is_reported(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(HostError, match="in a way that Roost cannot read"):
        folder_of(tmp_path, tensors).read("m.weight")


def test_a_block_is_cut_at_the_matrix_s_edge() -> None:
    weight, scale = torch.ones(130, 129), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = dequantise.fp8_blocks(weight, scale)
    assert (found[129, 128], found[127, 127], found[128, 0]) == (4, 1, 3)
