"""Model families: where a model's blocks are, and how the residual stream after a block is read. Inside SGLang.

Boundary k is always read from the output of block k-1, so a pipeline stage captures what its own blocks produce. SGLang
carries the residual stream in three ways. A block returns `(contribution, residual, …)`, and the stream is their sum:
all families but one up to 0.5.20, and some in 0.5.23. A block returns the whole stream: Gemma-3 up to 0.5.14. Most
families keep the residual in `forward_batch.residual_stream` from 0.5.21 on; a block's output may then lack a reduction
over ranks, and completing it is a collective of all ranks in the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from remote.model_families import MODEL_CLASSES
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
        """Write the first n rows of the state into `out` [n, hidden], of the state's dtype, without another buffer."""
        value = self.value[: out.shape[0]]
        if self.addend is None:
            out.copy_(value)
        else:
            torch.add(value, self.addend[: out.shape[0]], out=out)


class Blocks:
    """The usual places of a model's blocks and norms; a family with other places overrides these methods."""

    def depth(self, model: Any) -> int:
        """Return the number n of blocks in the whole model; a pipeline stage has placeholders for other blocks."""
        return len(model.layers)

    def local(self, model: Any) -> range:
        """Return the indices of the blocks that this process runs."""
        return range(int(getattr(model, "start_layer", 0)), int(getattr(model, "end_layer", len(model.layers))))

    def block(self, model: Any, index: int) -> torch.nn.Module:
        block: torch.nn.Module = model.layers[index]
        return block

    def input_norm(self, model: Any, index: int) -> torch.nn.Module:
        """Return the norm that reads the residual stream at boundary `index`, where the canary's hook is set."""
        norm: torch.nn.Module = self.block(model, index).input_layernorm
        return norm

    def final_norm(self, model: Any) -> torch.nn.Module:
        norm: torch.nn.Module = model.norm
        return norm

    def embedding(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> torch.Tensor:
        """Return boundary 0: the first block's argument `hidden_states`, its second parameter."""
        hidden: torch.Tensor = keywords["hidden_states"] if "hidden_states" in keywords else arguments[1]
        return hidden


USUAL = Blocks()
OTHERS: dict[str, Blocks] = {}
"""The families with blocks in other places, by the name of the model class."""


def blocks_of(model: object) -> Blocks | None:
    """Return how to read a built model, by the names of its classes; None if capture does not support the model."""
    names = {cls.__name__ for cls in type(model).__mro__}
    served = names.intersection(MODEL_CLASSES.values())
    return next((OTHERS.get(name, USUAL) for name in sorted(served)), None)


def carries_stream(forward_batch: Any) -> bool:
    """Return whether this SGLang can keep the residual in the forward batch (0.5.21 and newer)."""
    return hasattr(forward_batch, "residual_stream")


def state_after(output: Any, forward_batch: Any) -> State:
    """Return the residual stream after a block that returned `output`.

    Even with a newer SGLang, not every family keeps the residual in the batch, so each pass is checked. Raises
    RecordError if only a partial sum is available.
    """
    hidden = output[0] if isinstance(output, tuple) else output
    if getattr(forward_batch, "residual_stream", None) is not None:
        from sglang.srt.layers.layer_boundary.residual import batch as residual_batch

        return State(residual_batch.snapshot(hidden, forward_batch))
    if getattr(hidden, "_sglang_needs_allreduce_fusion", False):
        raise RecordError(
            "A block left its all-reduce to the next block's norm, so the state after it is a partial sum."
        )
    residual = output[1] if isinstance(output, tuple) and len(output) > 1 else None
    return State(hidden, residual)
