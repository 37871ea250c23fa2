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
    """A tiny model in transformers, float32 on the CPU: what goes into its first block and comes out of each."""

    def __init__(self, model: Path) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

        wrapped = hasattr(AutoConfig.from_pretrained(model), "text_config")
        kind = AutoModelForImageTextToText if wrapped else AutoModelForCausalLM
        loaded = kind.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
        self.model = loaded.eval().requires_grad_(False)
        blocks = getattr(self.model.model, "language_model", self.model.model)
        self._seen: list[torch.Tensor] = []
        blocks.layers[0].register_forward_pre_hook(self._begin, with_kwargs=True)
        for layer in blocks.layers:
            layer.register_forward_hook(self._keep)
        blocks.norm.register_forward_hook(self._keep)

    def _begin(self, _: torch.nn.Module, arguments: Any, keywords: Any) -> None:
        hidden = arguments[0] if arguments else keywords["hidden_states"]
        self._seen = [hidden[0].clone()]

    def _keep(self, _: torch.nn.Module, arguments: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        self._seen.append(hidden.reshape(-1, hidden.shape[-1]).clone())

    def boundaries(self, tokens: Sequence[int]) -> torch.Tensor:
        """[n + 1, rows, hidden]; the last one before the final norm."""
        import torch

        self._run(tokens)
        return torch.stack(self._seen[:-1])

    def normed(self, tokens: Sequence[int]) -> torch.Tensor:
        """The final state after the last norm, [rows, hidden]."""
        self._run(tokens)
        return self._seen[-1]

    def logprobs(self, tokens: Sequence[int]) -> torch.Tensor:
        """[rows, vocabulary]"""
        logprobs: torch.Tensor = self._run(tokens).logits[0].log_softmax(-1)
        return logprobs

    def _run(self, tokens: Sequence[int]) -> Any:
        import torch

        return self.model(torch.tensor([list(tokens)]))


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
