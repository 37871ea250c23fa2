"""A bounded ring of staging memory between the device and the writers. Inside SGLang.

The memory is pinned if there is a GPU: a copy to pageable memory would block the forward thread at 1.4 GB/s, but a copy
to pinned memory runs beside the forward pass at over 50 GB/s. Pinning takes about half a second for each GiB, so it is
done in the background while the model loads.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

import torch

from remote.shared.supervised.threads import Thread

logger = logging.getLogger(__name__)

SLAB_BYTES = 16 << 20
"""A power of two, because the pinned allocator rounds up to one."""


@dataclass
class Waits:
    """The number and the total time of a thread's waits."""

    times: int = 0
    seconds: float = 0.0

    def add(self, since: float) -> None:
        self.times += 1
        self.seconds += time.monotonic() - since


@dataclass
class Ring:
    """Slabs of raw bytes, at most `limit_bytes` in all; `take` waits for a slab, `give` returns it."""

    limit_bytes: int
    pinned: bool
    waits: Waits = field(default_factory=Waits)

    def __post_init__(self) -> None:
        self.slab_bytes = min(SLAB_BYTES, self.limit_bytes)
        self._limit = self.limit_bytes // self.slab_bytes
        self._made = 0
        self._free: list[torch.Tensor] = []
        self._change = threading.Condition()
        Thread(self._fill, "roost-capture-pin", self._stay_small)

    def take(self) -> torch.Tensor:
        """Return a free slab, uint8 [slab_bytes], after waiting until one is free. `waits` counts the wait.

        Raises MemoryError if no slab could be allocated.
        """
        with self._change:
            if not self._free:
                since = time.monotonic()
                self._change.wait_for(lambda: bool(self._free) or self._limit == 0)
                if not self._free:
                    raise MemoryError("No staging memory could be allocated.")
                self.waits.add(since)
            return self._free.pop()

    def give(self, slab: torch.Tensor) -> None:
        """Return a slab whose bytes are no longer needed."""
        with self._change:
            self._free.append(slab)
            self._change.notify()

    def _fill(self) -> None:
        while self._made < self._limit:
            try:
                slab = torch.empty(self.slab_bytes, dtype=torch.uint8, pin_memory=self.pinned)
            except RuntimeError as error:
                self._stay_small(error)
                return
            self._made += 1
            self.give(slab)

    def _stay_small(self, cause: BaseException) -> None:
        """Keep the ring's present size: the host allows no more pinned memory, most often by a memlock limit."""
        logger.info("Roost's capture stages in %d slabs: %s", self._made, cause)
        with self._change:
            self._limit = self._made
            self._change.notify_all()
