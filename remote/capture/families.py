"""Model families: where a model's blocks are, and how the residual stream is read behind one. Inside SGLang.

Boundary k is always read as what block k-1 leaves, so a pipeline stage captures what its own blocks produce.
SGLang carries the residual stream in three ways. A block returns `(contribution, residual, …)`, and the stream is their
sum: all families but one up to 0.5.20, and some of 0.5.23. A block returns the whole stream: Gemma-3 up to 0.5.14. From
0.5.21 on most keep the residual in `forward_batch.residual_stream`; what a block returns may still owe a reduction over
ranks, so completing it is a collective that every rank of the group takes part in.
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
        """Write the first `out.shape[0]` rows into `out` [n, hidden], of the state's dtype; no extra buffer."""
        value = self.value[: out.shape[0]]
        if self.addend is None:
            out.copy_(value)
        else:
            torch.add(value, self.addend[: out.shape[0]], out=out)


class Blocks:
    """Where a model's blocks and norms are: the usual places. A family with others overrides what differs."""

    def depth(self, model: Any) -> int:
        """Number of blocks of the whole model; boundary n. A pipeline stage holds stand-ins for the others' blocks."""
        return len(model.layers)

    def local(self, model: Any) -> range:
        """Indices of the blocks that this process runs."""
        return range(int(getattr(model, "start_layer", 0)), int(getattr(model, "end_layer", len(model.layers))))

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


USUAL = Blocks()
OTHERS: dict[str, Blocks] = {}
"""By a model class's name: the families whose blocks are elsewhere."""


def blocks_of(model: object) -> Blocks | None:
    """How to read a built model, by the names of its classes; None if capture does not serve it."""
    names = {cls.__name__ for cls in type(model).__mro__}
    served = names.intersection(MODEL_CLASSES.values())
    return next((OTHERS.get(name, USUAL) for name in sorted(served)), None)


def carries_stream(forward_batch: Any) -> bool:
    """Whether this SGLang can keep the residual in the forward batch (0.5.21 and newer)."""
    return hasattr(forward_batch, "residual_stream")


def state_after(output: Any, forward_batch: Any) -> State:
    """Read the residual stream behind a block from what it returned.

    Not every family keeps the residual in the batch where SGLang can, so whether this one does is looked at.
    Raises RecordError if only a partial sum is to be had.
    """
    hidden = output[0] if isinstance(output, tuple) else output
    if getattr(forward_batch, "residual_stream", None) is not None:
        from sglang.srt.layers.layer_boundary.residual import batch as residual_batch

        return State(residual_batch.snapshot(hidden, forward_batch))
    if getattr(hidden, "_sglang_needs_allreduce_fusion", False):
        raise RecordError(
            "A block left its all-reduce to the next block's norm, so the state behind it is a partial sum."
        )
    residual = output[1] if isinstance(output, tuple) and len(output) > 1 else None
    return State(hidden, residual)
