"""Writer threads: from staging memory into the records' files, off the forward thread. Inside SGLang.

Waiting for the device and writing both release the interpreter's lock, so the forward thread runs on meanwhile.
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
    """Consecutive rows of one record in one slab, readable once `ready` has come."""

    record: Record
    first: int
    slab: torch.Tensor
    size: int
    """Bytes of the slab that are used."""
    tokens: torch.Tensor
    """int64 [rows], host memory."""
    norms: torch.Tensor
    """float32 [rows, slots], host memory."""
    sums: torch.Tensor
    """Salted row sums, int64 [rows, slots], host memory."""
    ready: torch.cuda.Event | None
    """None where the copy was done at once (CPU)."""


class Writers:
    """A few threads that write pieces and give their slabs back. A piece's failure is its record's alone."""

    def __init__(self, ring: Ring, threads: int) -> None:
        self.bytes_written = 0
        self._ring = ring
        self._queue: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        self._lock = threading.Lock()
        for number in range(threads):
            Thread(self._run, f"roost-capture-{number}", log_end)

    def put(self, piece: Piece) -> None:
        """Have a piece written as soon as its bytes are there."""
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
