"""Copies gathered rows from the device to the writers' queue without delaying the forward pass. Inside SGLang.

Runs on a thread and a stream of its own; an event for each slab tells the writers that its bytes have arrived. The
allocator gets the gathered buffer back only after that stream has finished with it (`record_stream`). On a CPU, the
same steps are plain copies.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from remote.capture.batch import Segment
from remote.capture.gather import Gather
from remote.capture.record import Record
from remote.capture.ring import Ring
from remote.capture.rowsums import DeviceSums, salts_of
from remote.capture.writers import Piece, Writers

AHEAD_BYTES = 32 << 20
"""The most bytes in the device's copy queue. SGLang fetches its sampled tokens through the same copy engine, and an
answer behind all rows of a forward pass would wait for them (10 ms for 8,192 rows of 57 KB)."""


class Sender:
    """Copies rows into the ring and hands them to the writers. Used by one thread."""

    def __init__(self, ring: Ring, writers: Writers, boundaries: Sequence[int]) -> None:
        """`boundaries` are the slots of the gathered states."""
        self._ring = ring
        self._writers = writers
        self._stream: torch.cuda.Stream | None = None
        self._ahead: deque[tuple[torch.cuda.Event, int]] = deque()
        """Copies that the device may not have finished: the event after each copy, and its bytes."""
        self._tokens = torch.empty(0)
        self._norms = torch.empty(0)
        self._sums = torch.empty(0)
        self._device_sums = DeviceSums(boundaries)

    def begin(self, gather: Gather) -> torch.Tensor:
        """Compute every row's norm and salted sum for a closed pass, and copy them and the token ids to the host.

        Returns the states [rows, slots, hidden]. A norm is float32, and not finite if a value of its row is not.
        """
        states, tokens = gather.states, gather.tokens
        assert states is not None
        assert tokens is not None
        if gather.ready is not None:
            self._stream = self._stream or torch.cuda.Stream(states.device)
            self._stream.wait_event(gather.ready)
            for tensor in (states, tokens):
                tensor.record_stream(self._stream)
        with self._on_stream():
            self._norms = _to_host(torch.linalg.vector_norm(states, dim=-1, dtype=torch.float32))
            self._tokens = _to_host(tokens)
            self._sums = _to_host(
                self._device_sums.of(states, _to_device(salts_of(gather.segments, len(states)), states))
            )
        return states

    def send(self, states: torch.Tensor, record: Record, segment: Segment) -> None:
        """Copy one segment's rows of `states` [rows, slots, hidden]; waits only if the whole ring is in use."""
        most = self._ring.slab_bytes // record.layout.row_bytes
        starts = range(0, segment.rows, most)
        record.expect(len(starts))
        for number, start in enumerate(starts):
            try:
                self._copy(states, record, segment, start, min(most, segment.rows - start))
            except (RuntimeError, MemoryError) as error:
                record.fail(f"The rows could not be copied from the device: {error}.")
                record.lose(len(starts) - number)
                return

    def _copy(self, states: torch.Tensor, record: Record, segment: Segment, start: int, count: int) -> None:
        slab = self._ring.take()
        rows = slice(segment.offset + start, segment.offset + start + count)
        size = count * record.layout.row_bytes
        try:
            self._pace(size)
            with self._on_stream():
                slab[:size].view(states.dtype).view(count, *states.shape[1:]).copy_(states[rows], non_blocking=True)
            ready = self._mark(size)
        except RuntimeError:
            self._ring.give(slab)
            raise
        first = segment.first + start
        piece = Piece(record, first, slab, size, self._tokens[rows], self._norms[rows], self._sums[rows], ready)
        self._writers.put(piece)

    def _pace(self, size: int) -> None:
        """Wait until the copy queue has room for `size` bytes more."""
        while self._ahead and sum(copied for _, copied in self._ahead) + size > AHEAD_BYTES:
            event, _ = self._ahead.popleft()
            event.synchronize()

    def _mark(self, size: int) -> torch.cuda.Event | None:
        """Return an event after a copy of `size` bytes; None on a CPU, where copies are done at once."""
        if self._stream is None:
            return None
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        self._ahead.append((event, size))
        return event

    def _on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext()


def _to_device(tensor: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
    """Return a host tensor copied to the device of `beside`, in the order of the current stream."""
    return tensor.pin_memory().to(beside.device, non_blocking=True) if beside.is_cuda else tensor


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
