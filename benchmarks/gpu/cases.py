"""Models for parity on a GPU: families that SGLang serves on no CPU, and every way of keeping weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import kimi, quantise
from hosts.practice.engine.published import PUBLISHED, build_from

HIDDEN, INNER, EXPERT, EXPERTS, LAYERS, VOCABULARY = 512, 1024, 512, 8, 6, 2048
"""Multiples of what Hopper's quantised kernels ask for."""
_WIDE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "vocab_size": VOCABULARY,
    "head_dim": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": INNER,
}
_DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": HIDDEN,
    "vocab_size": VOCABULARY,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 256,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": INNER,
    "moe_intermediate_size": EXPERT,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def _widened(family: str, **more: Any) -> dict[str, Any]:
    return {**PUBLISHED[family], **_WIDE, **more}


@dataclass(frozen=True)
class Case:
    """One model: a configuration, how its weights are kept, and the flags that serve it."""

    name: str
    config: dict[str, Any]
    dtype: str = "bfloat16"
    quantise: Callable[[Path, Path], Path] | None = None
    flags: tuple[str, ...] = ()
    drop: tuple[str, ...] = field(default=())
    """Of the benchmark's own flags, those left out."""

    def make(self, root: Path) -> Path:
        """Write the model's folder."""
        plain = root / f"{self.name}-plain"
        model = build_from(self.config, LAYERS, getattr(torch, self.dtype), 7)
        model.save_pretrained(plain)
        return self.quantise(plain, root / self.name) if self.quantise else plain


def _kept(way: quantise.Way, config: dict[str, Any], which: str = "") -> Callable[[Path, Path], Path]:
    return lambda plain, out: quantise.quantised(plain, out, way, config, which)


_MOE = ("--moe-runner-backend=triton",)
_LLAMA = {**_WIDE, "model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
_GPT_OSS = _widened("gpt_oss", intermediate_size=EXPERT, head_dim=64)
_NEXT = _widened(
    "qwen3_next",
    moe_intermediate_size=EXPERT,
    shared_expert_intermediate_size=EXPERT,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
)
_MINIMAX = _widened("minimax_m2", intermediate_size=EXPERT, rotary_dim=32)
_LLAMA4 = _widened("llama4", intermediate_size=EXPERT, intermediate_size_mlp=INNER)
_HYBRID_FLAGS = ("--max-running-requests=8", "--max-mamba-cache-size=16")

_PACKED = _kept(quantise.packed_int4, {**quantise.COMPRESSED, "ignore": quantise.KIMI_IGNORES}, r"mlp\.experts\.")


def _wrapped(plain: Path, out: Path) -> Path:
    return kimi.wrap(_PACKED(plain, out))


CASES = (
    Case("gpt_oss-fp32", _GPT_OSS, "float32"),
    Case("gpt_oss", _GPT_OSS),
    Case("qwen3_next-fp32", _NEXT, "float32", flags=_HYBRID_FLAGS),
    Case("qwen3_next", _NEXT, flags=_HYBRID_FLAGS),
    Case("minimax_m2-fp32", _MINIMAX, "float32"),
    Case("minimax_m2", _MINIMAX),
    Case("llama4", _LLAMA4),
    Case("deepseek", _DEEPSEEK),
    Case("deepseek-int4", _DEEPSEEK, quantise=_PACKED, drop=_MOE),
    Case("kimi-k2.5", _DEEPSEEK, quantise=_wrapped, flags=("--trust-remote-code",), drop=_MOE),
    Case("llama-int4", _LLAMA, quantise=_kept(quantise.packed_int4, {**quantise.COMPRESSED, "ignore": ["lm_head"]})),
    Case("deepseek-fp8", _DEEPSEEK, quantise=_kept(quantise.fp8_blocks, quantise.FP8)),
    Case("qwen2-awq", _widened("qwen2"), quantise=_kept(quantise.awq_int4, quantise.AWQ)),
    Case("gpt_oss-mxfp4", _GPT_OSS, quantise=_kept(quantise.mxfp4, quantise.MXFP4), drop=_MOE),
)
