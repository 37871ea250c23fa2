"""Models for parity on a GPU: families that SGLang serves on no CPU, and every way of keeping weights."""

from __future__ import annotations

import json
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
    drop: tuple[str, ...] = ()
    """Of the benchmark's own flags, those left out."""
    said: dict[str, Any] = field(default_factory=dict)
    """What the published config says besides, and transformers does not write; SGLang reads it."""

    def make(self, root: Path) -> Path:
        """Write the model's folder."""
        plain = root / f"{self.name}-plain"
        model = build_from(self.config, LAYERS, getattr(torch, self.dtype), 7)
        model.save_pretrained(plain)
        config = json.loads((plain / "config.json").read_text())
        (plain / "config.json").write_text(json.dumps({**config, **self.said}, indent=1))
        return self.quantise(plain, root / self.name) if self.quantise else plain


def _kept(way: quantise.Way, config: dict[str, Any], which: str = "") -> Callable[[Path, Path], Path]:
    return lambda plain, out: quantise.quantised(plain, out, way, config, which)


_MOE = ("--moe-runner-backend=triton",)
_GPT_OSS = _widened("gpt_oss", intermediate_size=EXPERT, head_dim=64)
_NEXT = _widened(
    "qwen3_next",
    moe_intermediate_size=EXPERT,
    shared_expert_intermediate_size=EXPERT,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    linear_num_key_heads=4,
    linear_num_value_heads=8,
    layer_types=["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 2,
)
_MINIMAX = _widened("minimax_m2", intermediate_size=EXPERT, rotary_dim=32)
_LLAMA4 = _widened("llama4", intermediate_size=EXPERT, intermediate_size_mlp=INNER)
_HYBRID_FLAGS = ("--max-running-requests=8", "--max-mamba-cache-size=16")

_PACKED = _kept(quantise.packed_int4, {**quantise.COMPRESSED, "ignore": quantise.KIMI_IGNORES}, r"mlp\.experts\.")


def _wrapped(plain: Path, out: Path) -> Path:
    return kimi.wrap(_PACKED(plain, out))


_DEEPSEEK_SAYS = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "ep_size": 1}
_GPT_OSS_SAYS = {"swiglu_limit": 7.0, "initial_context_length": 4096, "experts_per_token": 2}
_NEXT_SAYS = {"full_attention_interval": 4}

CASES = (
    Case("minimax_m2", _MINIMAX),
    Case("gpt_oss", _GPT_OSS, drop=_MOE, said=_GPT_OSS_SAYS),
    Case("qwen3_next", _NEXT, flags=_HYBRID_FLAGS, said=_NEXT_SAYS),
    Case("llama4", _LLAMA4),
    Case("deepseek", _DEEPSEEK, said=_DEEPSEEK_SAYS),
    Case("deepseek-int4", _DEEPSEEK, quantise=_PACKED, said=_DEEPSEEK_SAYS),
    Case("kimi-k2.5", _DEEPSEEK, quantise=_wrapped, flags=("--trust-remote-code",), said=_DEEPSEEK_SAYS),
    Case("deepseek-fp8", _DEEPSEEK, quantise=_kept(quantise.fp8_blocks, quantise.FP8), said=_DEEPSEEK_SAYS),
    Case(
        "qwen2-awq",
        _widened("qwen2"),
        "float16",
        quantise=_kept(quantise.awq_int4, quantise.AWQ),
        flags=("--quantization=awq",),
    ),
    Case("gpt_oss-mxfp4", _GPT_OSS, quantise=_kept(quantise.mxfp4, quantise.MXFP4), drop=_MOE, said=_GPT_OSS_SAYS),
)
"""In bfloat16 where kernels allow: SGLang's own norm on a GPU has no float32. Kernels of the Marlin kind are left out:
the first server that needs one compiles it for five minutes."""
