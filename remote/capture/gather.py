"""Gathers one forward pass's rows on the device: every slot of every row, in the shard's order. Inside SGLang.

Later blocks overwrite a block's output in place, so each state is copied as soon as it exists: once, into the final
layout [rows, slots, hidden], by the kernel that also adds the residual.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from remote.capture.batch import Segment
from remote.capture.families import State
from remote.shared.errors import RecordError


class Gather:
    """The states of one forward pass's rows [0, rows), filled slot by slot as the blocks run."""

    def __init__(self, segments: Sequence[Segment], slots: Sequence[int]) -> None:
        """`slots` are the boundaries that this process captures."""
        self.segments = segments
        self.rows = max(segment.offset + segment.rows for segment in segments)
        self.states: torch.Tensor | None = None
        """[rows, slots, hidden] in the states' own dtype; None before the first state."""
        self.tokens: torch.Tensor | None = None
        """int64 [rows]; None before `close`."""
        self.ready: torch.cuda.Event | None = None
        """The event after all copies on the device; None on a CPU, where copies are done at once."""
        self.cause = ""
        """The first reason why this forward pass's records cannot be right; "" if there is none."""
        self._slots = list(slots)
        self._missing = set(range(len(slots)))

    def put(self, boundary: int, state: State) -> None:
        """Copy the state at a captured boundary; raises RecordError if it has fewer rows than the gather."""
        slot = self._slots.index(boundary)
        if state.rows < self.rows:
            raise RecordError(
                f"Boundary {boundary} has {state.rows} of {self.rows} rows on this rank: they are spread over ranks."
            )
        if self.states is None:
            dtype = state.value.dtype if state.addend is None else torch.result_type(state.value, state.addend)
            shape = (self.rows, len(self._slots), state.value.shape[-1])
            self.states = torch.empty(shape, dtype=dtype, device=state.value.device)
        state.write_to(self.states[:, slot])
        self._missing.discard(slot)

    def fail(self, cause: str) -> None:
        """Fail this forward pass with `cause`: none of its rows can be trusted."""
        self.cause = self.cause or cause

    def close(self, token_ids: torch.Tensor) -> None:
        """Finish after the forward pass: copy its token ids (int [>= rows]) and record the event.

        Fails the gather if the pass skipped a boundary, as CUDA graphs and two-batch overlap do.
        """
        if self._missing:
            passed = ", ".join(str(self._slots[slot]) for slot in sorted(self._missing))
            self.fail(f"The forward pass skipped the block at boundary {passed}.")
        self.tokens = token_ids[: self.rows].to(torch.int64, copy=True)
        if self.tokens.is_cuda:
            self.ready = torch.cuda.Event()
            self.ready.record(torch.cuda.current_stream(self.tokens.device))
