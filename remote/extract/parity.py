"""Run-time parity: chooses the records that are compared with the server's own logprobs, and compares them.

Runs on the host. A comparison needs the model's output head, and a core for seconds, so it has its own thread, which
imports torch. `remote.parity` describes the measurement, and which faults it cannot find.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from remote.shared.errors import RecordError
from remote.shared.messages.server import FinalNorm
from remote.shared.supervised.pools import Pool

if TYPE_CHECKING:
    from remote.parity.head import Head


NICE = 15
LEAST = 8
"""The minimum of compared records for each run and host; all records if there are fewer."""


def sample(indices: Iterable[int], rate: float) -> frozenset[int]:
    """Return which of a host's records are compared: the share `rate`, at least `LEAST`, but none if `rate` is 0.

    The choice depends only on a record's index, so the sample is the same in every session and at every attempt.
    """
    if rate == 0:
        return frozenset()
    order = {index: xxhash.xxh3_64_intdigest(index.to_bytes(8, "little")) for index in indices}
    least = heapq.nsmallest(LEAST, order, key=order.__getitem__)
    return frozenset([*least, *(index for index, place in order.items() if place < rate * 2**64)])


def not_last(positions: Sequence[int], compared: Callable[[int], bool]) -> list[int]:
    """Return the positions in their order, except compared records of the last quarter, which come first.

    A comparison takes a core for seconds. If the last record were compared, the end of the run would wait for it.
    """
    late = {position for position in positions[len(positions) * 3 // 4 :] if compared(position)}
    return [*sorted(late), *(position for position in positions if position not in late)]


class Parity:
    """Compares records of the sample, one at a time."""

    def __init__(self, final: FinalNorm) -> None:
        self._final = final
        self._heads: dict[Path, Head] = {}
        self._thread = Pool(1, "parity")

    def prepare(self, model: Path) -> None:
        """Begin to read the model's head (gigabytes). If it cannot be read, the first comparison raises the error."""
        self._thread.submit(self._head, model)

    async def check(self, shard: Path, tokens: NDArray[np.int32], meta: dict[str, Any], model: Path) -> dict[str, Any]:
        """Compare a shard's final slot with `meta`, the server's answer; return the measured numbers for the ledger.

        Raises RecordError if they disagree, HostError if the model's head cannot be read from `model`.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._check, shard, tokens, meta, model)

    def close(self) -> None:
        """End the thread. Queued comparisons are dropped."""
        self._thread.shutdown(cancel_futures=True)

    def _check(self, shard: Path, tokens: NDArray[np.int32], meta: dict[str, Any], model: Path) -> dict[str, Any]:
        from safetensors import safe_open

        from remote.parity.logprobs import ServerLogprobs, deviations

        head = self._head(model)
        with safe_open(shard, framework="pt") as file:
            final = file.get_slice("hidden_states")[:, -1]
        try:
            found = deviations(
                final,
                tokens.tolist(),
                ServerLogprobs.of_answer(meta),
                head.norm_weight,
                head.eps,
                head.lm_head,
                head.dtype,
                final=self._final,
            ).summary()
        except ValueError as error:
            raise RecordError(f"The record could not be compared with the server's answer: {error}.") from error
        if not found.passed:
            raise RecordError(f"{found}.")
        measured: dict[str, Any] = found.row()
        return measured

    def _head(self, model: Path) -> Head:
        from remote.parity.head import load_head

        if not self._heads:
            _give_way()
        if model not in self._heads:
            self._heads[model] = load_head(model)
        return self._heads[model]


def _give_way() -> None:
    """Lower the priority of this thread, and of the threads that torch starts from it, below the server's.

    With equal priority, comparisons on all cores slowed the scheduler's forward passes from 110 ms to 150 ms and more.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
