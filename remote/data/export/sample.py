"""Reads a record for the exporters, and writes the files that they share.

Called in the worker processes of `export`; imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load

from remote.shared.codec.container import SUFFIX
from remote.shared.errors import HostError, RecordError
from remote.shared.files import written_aside
from remote.shared.shard.tensorfile import unpacked


@dataclass(frozen=True)
class Sample:
    """A shard with its loss mask. `states` is memory-mapped, so a part that is kept must be copied."""

    index: int
    input_ids: torch.Tensor
    """int64 [L]."""
    loss_mask: torch.Tensor
    """int64 [L]."""
    states: torch.Tensor
    """[L, slots, H]; the last slot is the last boundary."""

    @property
    def final(self) -> torch.Tensor:
        """Return a contiguous copy of the final state, [L, H]."""
        return self.states[:, -1].clone(memory_format=torch.contiguous_format)

    @property
    def aux(self) -> torch.Tensor:
        """Return a contiguous copy of the auxiliary states side by side, [L, (slots-1) * H]."""
        return self.states[:, :-1].flatten(1).clone(memory_format=torch.contiguous_format)


def read_sample(path: Path, index: int, loss_mask: np.ndarray) -> Sample:
    """Return the record of a memory-mapped shard; raises HostError if it is damaged or does not fit its mask."""
    ids, states = read_tensors(path)
    if states.ndim != 3 or not len(ids) == len(loss_mask) == len(states):
        raise HostError(
            f"The shard {path} has {len(states)} rows, but its record has {len(loss_mask)} tokens.",
            remedy="Look with inv verify.",
        )
    return Sample(index, ids, torch.from_numpy(loss_mask.astype(np.int64)), states)


def read_tensors(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a shard's token ids and states, memory-mapped or, if it is compressed, unpacked; raises HostError."""
    try:
        if path.suffix == SUFFIX:
            tensors = load(bytes(unpacked(path)))
            return tensors["token_ids"], tensors["hidden_states"]
        with safe_open(str(path), framework="pt") as shard:
            return shard.get_tensor("token_ids"), shard.get_tensor("hidden_states")
    except (OSError, SafetensorError, RecordError, KeyError) as error:
        raise HostError(f"The shard {path} could not be read: {error}.", remedy="Look with inv verify.") from error


def save_pickled(content: dict[str, Any], path: Path) -> int:
    """Write with `torch.save`, atomically; return the bytes. A view would be saved with all of its base's memory."""
    with written_aside(path) as aside:
        torch.save(content, aside)
    return path.stat().st_size
