"""Families on real SGLang: which tiny models are served, and which planted faults the canary must name.

A family is one row of `MODELS`; what every one of them is asked is in `test_families.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

LAYERS = (0, 1, 3, 5)
DEPTH = 6
CHUNK = 64


@dataclass(frozen=True)
class Model:
    """A tiny model (`hosts/practice/engine`) and the family of `remote/model_families.py` that it stands for."""

    name: str
    family: str
    flags: tuple[str, ...] = ()
    on_cpu: bool = True
    """Whether SGLang serves it without a GPU; the others are served by `benchmarks/families_gpu.py`."""


MODELS = (
    Model("deepseek_v3", "deepseek"),
    Model("qwen3", "qwen3"),
    Model("qwen3_vl", "qwen3"),
    Model("qwen3_moe", "qwen3_moe"),
    Model("llama", "llama"),
    Model("qwen2", "qwen2"),
    Model("mistral", "llama"),
    Model("ministral3", "llama"),
    Model("phi3", "llama"),
    Model("glm4", "glm4"),
    Model("glm4_moe", "glm4_moe"),
    Model("minimax_m2", "minimax_m2", on_cpu=False),
    Model("gemma3", "gemma3"),
    Model("ernie4_moe", "ernie4"),
    Model("gpt_oss", "gpt_oss", on_cpu=False),
)

Fault = Callable[[torch.Tensor, int], torch.Tensor]
"""From all boundaries of a prompt [n + 1, rows, hidden] and a boundary to what a faulty capture would have there."""

FAULTS: dict[str, Fault] = {
    "one boundary early": lambda states, k: states[k - 1],
    "one boundary late": lambda states, k: states[(k + 1) % len(states)],
    "the block's own contribution": lambda states, k: states[k] - states[k - 1],
    "rows shifted by one": lambda states, k: states[k].roll(1, 0),
    "zeros in a middle row": lambda states, k: torch.where(
        torch.arange(states.shape[1])[:, None] == states.shape[1] // 2, 0, states[k]
    ),
    "a stale buffer": lambda states, k: torch.cat([states[k][:7], states[k].flip(0)[7:]]),
}
