"""Capture on SGLang's forward thread: its steps before, during and after each forward pass. Inside SGLang.

The model's hooks call it. No error here reaches SGLang; it only fails the records concerned. Reading a state can be a
collective. Whether a state is read therefore depends only on the batch, which all ranks of a group share, and never on
this rank's disk or memory.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from remote.capture.admission import Admission
from remote.capture.batch import segments
from remote.capture.families import State, carries_stream, state_after
from remote.capture.gather import Gather
from remote.capture.place import Place
from remote.shared.errors import RecordError
from remote.shared.messages.server import FinalNorm

logger = logging.getLogger(__name__)


class Capture:
    """The capture of one model; used by a single thread."""

    def __init__(
        self, place: Place, final: FinalNorm, admission: Admission | None, *, every_rank_reads: bool = False
    ) -> None:
        """`admission` is None on a rank that does not write.

        `every_rank_reads` is True if ranks hold different batches and reading a state is a collective among them.
        """
        self.place = place
        self.admission = admission
        self.seconds = 0.0
        """The forward thread's time in capture, including waits."""
        self._final = final
        self._every_rank_reads = every_rank_reads
        self._batch: Any = None
        self._gather: Gather | None = None
        self._reads = False

    def before(self, forward_batch: Any) -> None:
        """Find the captured rows of this forward pass; costs almost nothing if there are none."""
        self._batch, self._gather, self._reads = forward_batch, None, False
        try:
            found = segments(forward_batch)
        except Exception:
            logger.exception("Roost's capture could not read a forward batch")
            found = []
        if found and self.admission is not None:
            self._gather = Gather(found, self.place.local)
        collective = carries_stream(forward_batch) and (bool(found) or self._every_rank_reads)
        self._reads = self._gather is not None or collective

    def at_block(self, boundary: int, output: Any) -> None:
        """Read the state at `boundary`, after a block that returned `output`. An error fails only the pass."""
        if not self._reads:
            return
        since = time.perf_counter()
        try:
            state = state_after(output, self._batch)
            if self._gather is not None and not self._is_normed(boundary):
                self._gather.put(boundary, state)
        except Exception as error:
            self._fail_pass(boundary, error)
        self.seconds += time.perf_counter() - since

    def at_embedding(self, hidden: torch.Tensor) -> None:
        """Read boundary 0, the `hidden` [rows, hidden] that the first block gets."""
        if self._gather is None:
            return
        try:
            self._gather.put(0, State(hidden))
        except Exception as error:
            self._fail_pass(0, error)

    def after(self, output: Any) -> None:
        """Send the rows, after the model has returned."""
        gather, batch = self._gather, self._batch
        self._batch, self._gather, self._reads = None, None, False
        if gather is None or self.admission is None:
            return
        since = time.perf_counter()
        try:
            if self._is_normed(self.place.local[-1]):
                gather.put(self.place.depth, State(output[0] if isinstance(output, tuple) else output))
            gather.close(batch.input_ids)
        except Exception as error:
            logger.exception("Roost's capture failed in a forward pass")
            gather.fail(f"Capture failed: {type(error).__name__}: {error}.")
        self.admission.put(gather)
        self.seconds += time.perf_counter() - since

    def _is_normed(self, boundary: int) -> bool:
        """Return whether this slot is the state after the last norm, which the model itself returns."""
        return self._final == "post" and boundary == self.place.depth

    def _fail_pass(self, boundary: int, error: Exception) -> None:
        if not isinstance(error, RecordError):
            logger.error("Roost's capture could not read boundary %s", boundary, exc_info=error)
        if self._gather is not None:
            self._gather.fail(str(error) if isinstance(error, RecordError) else f"Boundary {boundary}: {error}.")
