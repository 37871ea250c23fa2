"""Makes quantised checkpoints of plain ones, as their makers name and pack them: small ones, for parity on a GPU.

Rounding is to the nearest; nothing is calibrated, since what is compared is the same rounded weights on both sides.
Needs torch; reads and writes model folders.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Way = Callable[[str, torch.Tensor], Tensors]
GROUP = 32
AWQ_GROUP = 128
BLOCK = 128
KIMI_IGNORES = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
"""As in Kimi-K2.5's own config: routed experts alone are packed."""
_LINEAR = re.compile(r".*layers\.\d+\..*(proj|experts\.\d+\.w\d|_with_mqa|q_[ab]_proj)\.weight$")


def packed_int4(module: str, weight: torch.Tensor) -> Tensors:
    """compressed-tensors W4A16, symmetric, groups of 32 columns."""
    rows, columns = weight.shape
    grouped = weight.float().view(rows, columns // GROUP, GROUP)
    scale = (grouped.abs().amax(-1) / 7.5).clamp_min(1e-8).to(torch.bfloat16)
    values = (grouped / scale.float()[:, :, None]).round().clamp(-8, 7).view(rows, columns)
    return {
        f"{module}.weight_packed": _words(values.to(torch.int32) + 8, range(8)),
        f"{module}.weight_scale": scale,
        f"{module}.weight_shape": torch.tensor([rows, columns]),
    }


def fp8_blocks(module: str, weight: torch.Tensor) -> Tensors:
    """DeepSeek's own: e4m3 with one scale a block of 128 x 128."""
    rows, columns = weight.shape
    down, across = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = torch.zeros(down * BLOCK, across * BLOCK)
    padded[:rows, :columns] = weight.float()
    blocks = padded.view(down, BLOCK, across, BLOCK)
    scale = (blocks.abs().amax((1, 3)) / 448).clamp_min(1e-12)
    values = (blocks / scale[:, None, :, None]).view(padded.shape)[:rows, :columns].to(torch.float8_e4m3fn)
    return {f"{module}.weight": values.contiguous(), f"{module}.weight_scale_inv": scale}


def awq_int4(module: str, weight: torch.Tensor) -> Tensors:
    """AutoAWQ's GEMM layout, 4 bits with zeros, groups of 128 inputs."""
    turned = weight.float().T.contiguous()
    inputs, outputs = turned.shape
    grouped = turned.view(inputs // AWQ_GROUP, AWQ_GROUP, outputs)
    low, high = grouped.amin(1), grouped.amax(1)
    scale = ((high - low) / 15).clamp_min(1e-6).half()
    zeros = (-low / scale.float()).round().clamp(0, 15)
    values = (grouped / scale.float()[:, None] + zeros[:, None]).round().clamp(0, 15).view(inputs, outputs)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        f"{module}.qweight": _words(values.to(torch.int32), order),
        f"{module}.qzeros": _words(zeros.to(torch.int32), order),
        f"{module}.scales": scale,
    }


def mxfp4(name: str, experts: torch.Tensor) -> Tensors:
    """gpt-oss' experts [experts, in, out]: fp4 pairs in bytes, one power of two for 32 inputs."""
    turned = experts.float().transpose(1, 2).contiguous()
    grouped = turned.view(*turned.shape[:2], -1, 32)
    exponent = torch.floor(torch.log2(grouped.abs().amax(-1).clamp_min(1e-20))) - 2
    scaled = grouped / torch.exp2(exponent)[..., None]
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = (scaled.abs()[..., None] - table).abs().argmin(-1) + 8 * (scaled < 0)
    pairs = codes.view(*codes.shape[:-1], 16, 2).to(torch.uint8)
    return {
        f"{name}_blocks": (pairs[..., 0] | (pairs[..., 1] << 4)).contiguous(),
        f"{name}_scales": (exponent + 127).to(torch.uint8),
    }


def quantised(plain: Path, out: Path, way: Way, config: dict[str, Any], which: str = "") -> Path:
    """Write the folder `plain` to `out` with the linear weights whose names match `which` (all: "") kept in a `way`."""
    shutil.copytree(plain, out, dirs_exist_ok=True)
    said = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**said, "quantization_config": config}, indent=1))
    tensors: Tensors = {}
    for name, weight in load_file(plain / "model.safetensors").items():
        tensors |= dict(_kept(name, weight, way, which))
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def _kept(name: str, weight: torch.Tensor, way: Way, which: str) -> Iterator[tuple[str, torch.Tensor]]:
    if way is mxfp4:
        chosen = name.endswith(("gate_up_proj", "down_proj")) and weight.dim() == 3
    else:
        chosen = bool(_LINEAR.match(name)) and weight.dim() == 2 and re.search(which, name) is not None
    if not chosen:
        yield name, weight
        return
    yield from way(name.removesuffix(".weight"), weight).items()


def _words(values: torch.Tensor, order: range | tuple[int, ...]) -> torch.Tensor:
    """Pack unsigned nibbles [rows, columns] to int32 words: nibble i of a word is its column order[i]."""
    words = torch.zeros(values.shape[0], values.shape[1] // 8, dtype=torch.int64)
    for place, column in enumerate(order):
        words |= values[:, column::8].long() << (4 * place)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": {
                **{"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP},
                **{"dynamic": False, "actorder": None, "block_structure": None},
                **{"observer": "minmax", "observer_kwargs": {}},
            },
        }
    },
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": AWQ_GROUP, "zero_point": True, "version": "gemm"}
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
