"""Quantised weights as the plain matrices that they stand for, in float32. Host side; imports torch alone.

Pure: tensors in, a tensor out. Each function is one way of keeping a matrix [out, in], as checkpoints name it.
"""

from __future__ import annotations

import torch

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AWQ keeps the eight columns of a word: column i is nibble `_AWQ_ORDER[i]`."""
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def pack_quantized(packed: torch.Tensor, scale: torch.Tensor, shape: torch.Tensor, bits: int = 4) -> torch.Tensor:
    """compressed-tensors' `pack-quantized`, symmetric: int32 words of `32 / bits` columns each, scales by group."""
    rows, columns = (int(size) for size in shape)
    values = _unpacked(packed, bits, range(32 // bits))[:, :columns] - 2 ** (bits - 1)
    return (values.view(rows, scale.shape[1], -1) * scale.float()[:, :, None]).view(rows, columns)


def awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """AWQ, 4 bits: [in, out / 8] words, zeros and scales by group of inputs."""
    values, zeros = _unpacked(qweight, 4, _AWQ_ORDER), _unpacked(qzeros, 4, _AWQ_ORDER)
    group = values.shape[0] // scales.shape[0]
    spread = (values.view(scales.shape[0], group, -1) - zeros[:, None]) * scales.float()[:, None]
    return spread.reshape(values.shape).T.contiguous()


def fp8_blocks(weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] = (128, 128)) -> torch.Tensor:
    """FP8 with one scale a block (DeepSeek's `weight_scale_inv`), a row or a matrix (`weight_scale`)."""
    if scale.dim() == 1 and len(scale) == len(weight):
        scale = scale[:, None]
    elif scale.dim() == 2 and len(scale) != len(weight):
        scale = scale.repeat_interleave(block[0], 0)[: weight.shape[0]].repeat_interleave(block[1], 1)
        scale = scale[:, : weight.shape[1]]
    return weight.float() * scale.float()


def mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """MXFP4 as gpt-oss keeps experts, [experts, out, in / 32, 16] bytes of two values; returns [experts, in, out]."""
    table = torch.tensor(_FP4, device=blocks.device)
    pairs = torch.stack([table[(blocks & 15).long()], table[(blocks >> 4).long()]], dim=-1)
    values = pairs.flatten(-2) * torch.exp2(scales.float() - 127)[..., None]
    return values.flatten(-2).transpose(-1, -2).contiguous()


def _unpacked(words: torch.Tensor, bits: int, order: range | tuple[int, ...]) -> torch.Tensor:
    """The unsigned values in int32 words [rows, words] as float32 [rows, words * 32 / bits]."""
    shifts = torch.tensor([bits * place for place in order], dtype=torch.int32, device=words.device)
    values = (words[..., None] >> shifts) & (2**bits - 1)
    return values.flatten(-2).float()
