"""Random weights of the tiny models, under the names that their checkpoints use. Runs inside `.engine`.

Called by `tiny_model.py`; pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class Weights:
    """Tensors by checkpoint name, drawn from one seeded generator: the same calls give the same model."""

    dtype: torch.dtype
    generator: torch.Generator
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def matrix(self, name: str, rows: int, columns: int, scale: float | None = None) -> None:
        """Add a [rows, columns] matrix, scaled so that its output is as large as its input."""
        scale = columns**-0.5 if scale is None else scale
        self.tensors[name] = (torch.randn(rows, columns, generator=self.generator) * scale).to(self.dtype)

    def norm(self, name: str, width: int) -> None:
        """Add a norm's [width] weight around 1, but not 1, so that tests notice a missing norm."""
        self.tensors[name] = (1 + 0.1 * torch.randn(width, generator=self.generator)).to(self.dtype)

    def bias(self, name: str, width: int) -> None:
        """Add a router's [width] correction, which is float32 in every checkpoint."""
        self.tensors[name] = torch.randn(width, generator=self.generator) * 0.01

    def gated_mlp(self, prefix: str, hidden: int, inner: int) -> None:
        """Add a SwiGLU block."""
        self.matrix(f"{prefix}gate_proj.weight", inner, hidden)
        self.matrix(f"{prefix}up_proj.weight", inner, hidden)
        self.matrix(f"{prefix}down_proj.weight", hidden, inner)
