"""What transformers says about a tiny model's prompts: the truth that captured states are held to."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch


class Reference:
    """A tiny model in transformers, float32 on the CPU."""

    def __init__(self, model: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
        self.model = loaded.eval().requires_grad_(False)
        self._last: list[torch.Tensor] = []
        self.model.model.layers[-1].register_forward_hook(self._keep)

    def _keep(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        self._last = [output[0] if isinstance(output, tuple) else output]

    def boundaries(self, tokens: Sequence[int]) -> torch.Tensor:
        """[n + 1, rows, hidden]; the last one before the final norm."""
        import torch

        states = [state[0] for state in self._run(tokens).hidden_states[:-1]]
        return torch.stack([*states, self._last[0].reshape(states[0].shape)])

    def normed(self, tokens: Sequence[int]) -> torch.Tensor:
        """The final state after the last norm, [rows, hidden]."""
        normed: torch.Tensor = self._run(tokens).hidden_states[-1][0]
        return normed

    def logprobs(self, tokens: Sequence[int]) -> torch.Tensor:
        """[rows, vocabulary]"""
        logprobs: torch.Tensor = self._run(tokens).logits[0].log_softmax(-1)
        return logprobs

    def _run(self, tokens: Sequence[int]) -> Any:
        import torch

        return self.model(torch.tensor([list(tokens)]), output_hidden_states=True)


@pytest.fixture(scope="session")
def reference_of(tiny_model_of: Callable[..., Path]) -> Callable[[str], Reference]:
    made: dict[str, Reference] = {}

    def of(family: str = "deepseek_v3") -> Reference:
        if family not in made:
            made[family] = Reference(tiny_model_of(family))
        return made[family]

    return of


@pytest.fixture(scope="session")
def prompts_of() -> Callable[..., list[list[int]]]:
    """`prompts_of(seed, 5, 40)` are random prompts of these lengths."""

    def of(seed: int, *lengths: int) -> list[list[int]]:
        draw = random.Random(seed)
        return [[draw.randrange(256) for _ in range(length)] for length in lengths]

    return of
