"""Writer threads: write staging memory into the records' files, away from the forward thread. Inside SGLang.

Waiting for the device and writing both release the GIL, so the forward thread keeps running.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass

import numpy as np
import torch

from remote.capture.record import Record
from remote.capture.ring import Ring
from remote.shared.supervised.threads import Thread, log_end

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one record in one slab, readable after the event `ready`."""

    record: Record
    first: int
    slab: torch.Tensor
    size: int
    """The number of used bytes in the slab."""
    tokens: torch.Tensor
    """int64 [rows], host memory."""
    norms: torch.Tensor
    """float32 [rows, slots], host memory."""
    sums: torch.Tensor
    """Salted row sums, int64 [rows, slots], host memory."""
    ready: torch.cuda.Event | None
    """None if the copy was done at once (on a CPU)."""


class Writers:
    """A few threads that write pieces and return their slabs. A piece's failure fails only its record."""

    def __init__(self, ring: Ring, threads: int) -> None:
        self.bytes_written = 0
        self._ring = ring
        self._queue: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        self._lock = threading.Lock()
        for number in range(threads):
            Thread(self._run, f"roost-capture-{number}", log_end)

    def put(self, piece: Piece) -> None:
        """Queue a piece, which is written once its bytes have arrived."""
        self._queue.put(piece)

    def _run(self) -> None:
        while True:
            piece = self._queue.get()
            try:
                self._write(piece)
            except Exception:
                logger.exception("Roost's capture could not write rows of %s", piece.record.request)
            finally:
                self._ring.give(piece.slab)

    def _write(self, piece: Piece) -> None:
        if piece.ready is not None:
            try:
                piece.ready.synchronize()
            except RuntimeError as error:
                piece.record.fail(f"The device failed while the rows were copied: {error}.")
        states = memoryview(piece.slab[: piece.size].numpy())
        tokens: np.ndarray = piece.tokens.numpy()
        norms, sums = piece.norms.numpy(), piece.sums.numpy().view(np.uint64)
        written = piece.record.put(piece.first, states, tokens, norms, sums)
        with self._lock:
            self.bytes_written += written
