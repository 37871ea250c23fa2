"""The ways of capturing that Roost's is measured against, as an SGLang plugin. Inside the benchmark's server only.

A request whose id is `naive.<n>` is saved with `torch.save` inside the forward pass, `inthread.<n>` with safetensors;
any other request is left alone, so that all ways are timed in one server, interleaved. Three variants of Roost's own
say where its time goes: records with the nonce `unsummed` have zeros for row sums, those with the nonce `unpaced` are
copied with no bound on what the device has in its queue, and those with the nonce `gathered` are dropped when their
forward pass is over.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

WAYS = ("naive", "inthread")
_LAYERS = tuple(int(layer) for layer in os.environ.get("SGLANG_HS_LAYERS", "").split(",") if layer)


def install() -> None:
    """Wrap the model's constructor; SGLang calls this in every process."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def attach(_: None, model: torch.nn.Module, *arguments: Any, **keywords: Any) -> None:
        Rival(model)
        _vary()

    HookRegistry.register("sglang.srt.models.deepseek_v2.DeepseekV2Model.__init__", attach, HookType.AFTER)


def _vary() -> None:
    from remote.capture import sender
    from remote.capture.admission import Admission
    from remote.capture.gather import Gather
    from remote.capture.rowsums import DeviceSums

    take, bound, sums = Admission._take, sender.AHEAD_BYTES, DeviceSums.of

    def varied(self: Admission, gather: Gather) -> None:
        nonces = {segment.request.nonce for segment in gather.segments}
        sender.AHEAD_BYTES = 1 << 60 if "unpaced" in nonces else bound
        DeviceSums.of = _zeros if "unsummed" in nonces else sums  # type: ignore[method-assign,assignment]
        if "gathered" not in nonces:
            take(self, gather)

    Admission._take = varied  # type: ignore[method-assign]


def _zeros(_: Any, states: torch.Tensor, salts: torch.Tensor) -> torch.Tensor:
    """Instead of row sums, int64 [rows, slots]."""
    return torch.zeros(states.shape[:2], dtype=torch.int64, device=states.device)


class Rival:
    """Hooks on one model; idle unless a batch holds a request of theirs."""

    def __init__(self, model: Any) -> None:
        self._directory = Path(os.environ["SGLANG_HS_DUMP_DIR"])
        self._states: list[torch.Tensor] = []
        self._requests: list[tuple[str, int, int, int]] = []
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(self._after)
        for boundary in (*_LAYERS, model.config.num_hidden_layers):
            model.layers[boundary - 1].register_forward_hook(self._keep)

    def _before(self, _: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        batch = keywords.get("forward_batch") or next(a for a in arguments if hasattr(a, "forward_mode"))
        self._states, self._requests = [], []
        if batch.forward_mode.name != "EXTEND":
            return
        offset = 0
        for rid, first, rows in zip(batch.rids, batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu, strict=True):
            if rid.partition(".")[0] in WAYS:
                self._requests.append((rid, first, offset, rows))
            offset += rows

    def _keep(self, _: Any, arguments: tuple[Any, ...], output: Any) -> None:
        if self._requests:
            self._states.append(output[0] + output[1])

    def _after(self, *_: Any) -> None:
        for rid, first, offset, rows in self._requests:
            states = [state[offset : offset + rows].cpu() for state in self._states]
            if rid.startswith("naive."):
                torch.save(states, self._directory / f"{rid}.{first}.pt")
            else:
                save_file({"hidden_states": torch.stack(states, dim=1)}, self._directory / f"{rid}.{first}.safetensors")
        self._states = []
