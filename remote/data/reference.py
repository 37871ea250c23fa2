"""Computes a record's hidden states with transformers, the reference of `verify --model`. Imports torch.

Hooks at the blocks themselves give boundary k, the state after k blocks; models differ in the last entry of their
`output_hidden_states`. Runs where the model fits into memory; reads the model's folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from remote.parity.checkpoint import Checkpoint
from remote.shared.errors import HostError
from remote.shared.messages.run import RunIdentity

_SAME_AS = {"kimi_k2": "deepseek_v3"}
"""Model types that only a checkpoint's own code defines, with the equivalent type in transformers."""
_NOT_LANGUAGE = ("vision_tower.", "mm_projector.")
_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def load_model(folder: Path, dtype: torch.dtype) -> Any:
    """Load the language model in `folder` into transformers; quantized weights are dequantized.

    Raises HostError if transformers lacks the model, or Roost cannot read the format of its weights.
    """
    checkpoint = Checkpoint(folder, "cuda" if torch.cuda.is_available() else "cpu")
    try:
        if checkpoint.quantisation:
            return _dequantised(checkpoint, dtype)
        return _plain(folder, checkpoint, dtype)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise HostError(f"The model at {folder} could not be loaded: {reason}") from error


def _plain(folder: Path, checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForCausalLM if "text_config" not in checkpoint.config else AutoModelForImageTextToText
    return kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager")


def _dequantised(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """Return the language model inside a wrapper (Kimi-K2.5), with tensors that are dequantized one by one."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    said = dict(checkpoint.config.get("text_config") or checkpoint.config)
    said.pop("quantization_config", None)
    kind = str(said.pop("model_type"))
    config = AutoConfig.for_model(_SAME_AS.get(kind, kind), **said)
    names = [name for name in checkpoint.names() if not name.startswith(_NOT_LANGUAGE)]
    weights = {name.removeprefix("language_model."): checkpoint.read(name).to(dtype).cpu() for name in names}
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return model.from_pretrained(None, config=config, state_dict=weights, dtype=dtype, attn_implementation="eager")


class Reference:
    """A model in transformers with eager attention, on the CPU or the first GPU."""

    def __init__(self, folder: Path, identity: RunIdentity) -> None:
        self.identity = identity
        model = load_model(folder, _DTYPES[identity.dtype])
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.eval().to(self._device)
        self._layers, self._norm = _blocks_and_norm(self._model, identity.boundaries[-1])

    def states(self, token_ids: np.ndarray) -> torch.Tensor:
        """Compute the slots of a record, float32 [L, slots, H]."""
        seen: dict[int, torch.Tensor] = {}
        handles = [self._hook(boundary, seen) for boundary in self.identity.boundaries]
        ids = torch.from_numpy(token_ids.astype(np.int64)).unsqueeze(0).to(self._device)
        try:
            with torch.no_grad():
                self._model(input_ids=ids, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack([seen[boundary] for boundary in self.identity.boundaries], dim=1)

    def _hook(self, boundary: int, seen: dict[int, torch.Tensor]) -> Any:
        blocks = len(self._layers)

        def keep(output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            seen[boundary] = tensor[0].float().cpu()

        if boundary == blocks and self.identity.final == "post":
            return self._norm.register_forward_hook(lambda module, inputs, output: keep(output))
        if boundary == blocks:
            return self._norm.register_forward_pre_hook(lambda module, inputs: keep(inputs))
        return self._layers[boundary].register_forward_pre_hook(
            lambda module, inputs, kwargs: keep(inputs if inputs else kwargs["hidden_states"]), with_kwargs=True
        )


def _blocks_and_norm(model: nn.Module, blocks: int) -> tuple[nn.ModuleList, nn.Module]:
    """Return the decoder's blocks and the norm after them; raise HostError if the model has no such parts."""
    for module in model.modules():
        layers, norm = getattr(module, "layers", None), getattr(module, "norm", None)
        if isinstance(layers, nn.ModuleList) and len(layers) == blocks and isinstance(norm, nn.Module):
            return layers, norm
    raise HostError(
        f"{type(model).__name__} has no {blocks} blocks followed by a norm, so its states cannot be compared with the "
        f"shards."
    )


def relative_errors(found: torch.Tensor, wanted: torch.Tensor) -> list[float]:
    """Return for each slot the largest difference of two arrays [L, slots, H], divided by the largest value."""
    difference = (found.float() - wanted).abs().amax(dim=(0, 2))
    return (difference / wanted.abs().amax(dim=(0, 2)).clamp_min(1e-30)).tolist()  # type: ignore[no-any-return]
