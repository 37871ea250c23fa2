"""The canary's own hook: records all boundaries of a canary prompt at the next block's norm. Runs inside SGLang.

It shares only the request id and the registered sessions with `remote.capture`. Boundary k is the residual that block
k's input norm returned (for boundary n, the last norm): the value that the model itself continued with, complete on
every rank. The norms have hooks only while a canary's forward pass runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from remote.shared.files import write_whole, written_aside
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import Sessions

logger = logging.getLogger(__name__)


@dataclass
class _Joined:
    """The chunks of one canary so far, each [boundaries, rows, hidden]."""

    chunks: list[torch.Tensor] = field(default_factory=list)
    normed: list[torch.Tensor] = field(default_factory=list)
    tokens: list[torch.Tensor] = field(default_factory=list)
    rows: int = 0


class CanaryHook:
    """Records the residuals of one model's norms; `norms` maps each boundary to the norm that reads it."""

    def __init__(self, norms: dict[int, torch.nn.Module], depth: int, directory: Path, suffix: str) -> None:
        """`suffix` stands between the canary's id and the file's extension; each pipeline stage has its own file."""
        self._norms = norms
        self._depth = depth
        self._directory = directory
        self._sessions = Sessions(directory)
        self._suffix = suffix
        self._seen: dict[int, torch.Tensor] = {}
        self._normed: torch.Tensor | None = None
        self._handles: list[Any] = []
        self._joined: dict[str, _Joined] = {}

    def before(self, forward_batch: Any) -> None:
        """Set the hooks if this forward pass prefills a canary."""
        self._stop()
        if any(_canaries(forward_batch)):
            for boundary, norm in self._norms.items():
                self._handles.append(norm.register_forward_hook(self._listener(boundary)))

    def after(self, forward_batch: Any) -> None:
        """Keep the canaries' rows of this forward pass, and write the canaries that are complete."""
        if not self._handles:
            return
        self._stop()
        for request, first, rows in _canaries(forward_batch):
            if request.nonce not in self._sessions:
                continue
            try:
                self._join(request, slice(first, first + rows), forward_batch.input_ids)
            except Exception as error:
                logger.exception("The canary's hook failed")
                content = json.dumps({"rid": str(request), "cause": f"{type(error).__name__}: {error}"}).encode()
                write_whole(self._directory / f"{request}.canary{self._suffix}.error.json", content)
        self._seen.clear()
        self._normed = None

    def _listener(self, boundary: int) -> Any:
        def hook(_: torch.nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            # Later blocks add to the residual in place, so the hook must keep a copy.
            self._seen[boundary] = (output[1] if isinstance(output, tuple) else arguments[0]).clone()
            if boundary == self._depth:
                self._normed = (output[0] if isinstance(output, tuple) else output).clone()

        return hook

    def _stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _join(self, request: RequestId, rows: slice, tokens: torch.Tensor) -> None:
        missing = sorted(self._norms.keys() - self._seen.keys())
        if missing:
            raise RuntimeError(f"the norms at boundaries {missing} were not called")
        joined = self._joined.setdefault(str(request), _Joined())
        joined.chunks.append(torch.stack([self._seen[k][rows].cpu() for k in sorted(self._norms)]))
        # SGLang reuses the batch's own tensor.
        joined.tokens.append(tokens[rows].to(device="cpu", dtype=torch.int64, copy=True))
        if self._normed is not None:
            joined.normed.append(self._normed[rows].cpu())
        joined.rows += rows.stop - rows.start
        if joined.rows >= request.rows:
            self._write(request, self._joined.pop(str(request)))

    def _write(self, request: RequestId, joined: _Joined) -> None:
        states = torch.cat(joined.chunks, dim=1).transpose(0, 1).contiguous()
        tensors = {"boundaries": states, "token_ids": torch.cat(joined.tokens)}
        if joined.normed:
            tensors["normed"] = torch.cat(joined.normed).contiguous()
        metadata = {"rid": str(request), "boundaries": json.dumps(sorted(self._norms))}
        with written_aside(self._directory / f"{request}.canary{self._suffix}.safetensors") as aside:
            save_file(tensors, aside, metadata)


def _canaries(forward_batch: Any) -> Sequence[tuple[RequestId, int, int]]:
    """Return (id, first row, rows) of the canaries that this forward pass prefills."""
    if forward_batch.forward_mode.name != "EXTEND" or not forward_batch.rids:
        return []
    found, offset = [], 0
    for rid, rows in zip(forward_batch.rids, forward_batch.extend_seq_lens_cpu, strict=True):
        request = RequestId.parse(rid)
        if request is not None and request.is_canary:
            found.append((request, offset, int(rows)))
        offset += int(rows)
    return found
