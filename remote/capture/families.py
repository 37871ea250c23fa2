"""Model families: where a model's blocks are, and how the residual stream is read behind one. Inside SGLang.

Boundary k is always read as what block k-1 leaves, so a pipeline stage captures what its own blocks produce.
SGLang carries the residual stream in two ways: up to 0.5.20 a block returns `(contribution, residual, …)` and the
stream is their sum; from 0.5.21 the residual lives in `forward_batch.residual_stream` and what a block returns may
still owe a reduction over ranks, so completing it is a collective that every rank of the group takes part in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from remote.shared.errors import RecordError


@dataclass(frozen=True)
class State:
    """The residual stream at one boundary, as one or two addends [rows, hidden]; rows may be padded at the end."""

    value: torch.Tensor
    addend: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return int(self.value.shape[0])

    def write_to(self, out: torch.Tensor) -> None:
        """Write the first `out.shape[0]` rows into `out` [n, hidden], of the state's dtype; no extra buffer."""
        value = self.value[: out.shape[0]]
        if self.addend is None:
            out.copy_(value)
        else:
            torch.add(value, self.addend[: out.shape[0]], out=out)


@dataclass(frozen=True)
class Family:
    """One of SGLang's model classes. A new family is one instance of this class, or of a small subclass."""

    module: str
    model_class: str

    def depth(self, model: Any) -> int:
        """Number of blocks of the whole model; boundary n."""
        return int(model.config.num_hidden_layers)

    def local(self, model: Any) -> range:
        """Indices of the blocks that this process runs."""
        return range(int(model.start_layer), int(model.end_layer))

    def block(self, model: Any, index: int) -> torch.nn.Module:
        block: torch.nn.Module = model.layers[index]
        return block

    def input_norm(self, model: Any, index: int) -> torch.nn.Module:
        """The norm that reads the residual stream at boundary `index`; the canary's hook listens there."""
        norm: torch.nn.Module = self.block(model, index).input_layernorm
        return norm

    def final_norm(self, model: Any) -> torch.nn.Module:
        norm: torch.nn.Module = model.norm
        return norm

    def embedding(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> torch.Tensor:
        """Boundary 0: what the first block is given as `hidden_states`, its second parameter."""
        hidden: torch.Tensor = keywords["hidden_states"] if "hidden_states" in keywords else arguments[1]
        return hidden


class DeepSeek(Family):
    """DeepSeek-V2 and V3; Kimi-K2 is one, Kimi-K2.5 wraps one. Blocks also return their top-k indices."""


class Llama(Family):
    """Llama."""


class Qwen3(Family):
    """Qwen3, dense."""


class Qwen3Moe(Family):
    """Qwen3 with experts."""


FAMILIES: tuple[Family, ...] = (
    DeepSeek("sglang.srt.models.deepseek_v2", "DeepseekV2Model"),
    Llama("sglang.srt.models.llama", "LlamaModel"),
    Qwen3("sglang.srt.models.qwen3", "Qwen3Model"),
    Qwen3Moe("sglang.srt.models.qwen3_moe", "Qwen3MoeModel"),
)


def family_of(model: object) -> Family | None:
    """The family of a built model, by the names of its classes; None where capture does not serve it."""
    names = {cls.__name__ for cls in type(model).__mro__}
    return next((family for family in FAMILIES if family.model_class in names), None)


def carries_stream(forward_batch: Any) -> bool:
    """Whether this SGLang keeps the residual in the forward batch (0.5.21 and newer)."""
    return hasattr(forward_batch, "residual_stream")


def state_after(output: Any, forward_batch: Any) -> State:
    """Read the residual stream behind a block from what it returned.

    Raises RecordError where only a partial sum is to be had.
    """
    if carries_stream(forward_batch):
        from sglang.srt.layers.layer_boundary.residual import batch as residual_batch

        hidden = output[0] if isinstance(output, tuple) else output
        return State(residual_batch.snapshot(hidden, forward_batch))
    hidden, residual = output[0], output[1]
    if getattr(hidden, "_sglang_needs_allreduce_fusion", False):
        raise RecordError(
            "A block left its all-reduce to the next block's norm, so the state behind it is a partial sum."
        )
    return State(hidden, residual)
