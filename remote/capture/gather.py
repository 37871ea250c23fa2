"""One forward pass's rows on the device: every slot of every row, gathered in the shard's order. Inside SGLang.

The blocks' outputs are overwritten in place by the blocks that follow, so each state is copied the moment it
exists; once, in the final layout [rows, slots, hidden], by a kernel that also does the residual's addition.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from remote.capture.batch import Segment
from remote.capture.families import State
from remote.shared.errors import RecordError


class Gather:
    """The states of one forward pass's rows [0, rows), slot by slot as the blocks are passed."""

    def __init__(self, segments: Sequence[Segment], slots: Sequence[int]) -> None:
        """`slots` are the boundaries wanted of this process."""
        self.segments = segments
        self.rows = max(segment.offset + segment.rows for segment in segments)
        self.states: torch.Tensor | None = None
        """[rows, slots, hidden] in the states' own dtype, from the first state on."""
        self.tokens: torch.Tensor | None = None
        """int64 [rows], from `close` on."""
        self.ready: torch.cuda.Event | None = None
        """Comes when the device has done all of it; None on a CPU, where nothing is outstanding."""
        self.cause = ""
        """Why this forward pass's records cannot be right; the first reason."""
        self._slots = list(slots)
        self._missing = set(range(len(slots)))

    def put(self, boundary: int, state: State) -> None:
        """Keep the state at a wanted boundary; raises RecordError where it lacks rows."""
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
        """Note why none of this pass's rows can be trusted."""
        self.cause = self.cause or cause

    def close(self, token_ids: torch.Tensor) -> None:
        """The forward pass is over: copy its token ids (int [>= rows]) and mark the place in the device's work.

        Notes a boundary that the pass went around (graphs and two-batch overlap do that).
        """
        if self._missing:
            passed = ", ".join(str(self._slots[slot]) for slot in sorted(self._missing))
            self.fail(f"The forward pass went around the blocks at boundary {passed}.")
        self.tokens = token_ids[: self.rows].to(torch.int64, copy=True)
        if self.tokens.is_cuda:
            self.ready = torch.cuda.Event()
            self.ready.record(torch.cuda.current_stream(self.tokens.device))
