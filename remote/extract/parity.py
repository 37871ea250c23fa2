"""Run-time parity as extraction uses it: which records are compared with the server's own words, and the verdict.

Runs on the host; the comparison needs the model's output head and a core for some seconds, so it has one thread of its
own and torch is imported there. What is measured, and what it cannot see, is in `remote.parity`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from remote.shared.errors import RecordError
from remote.shared.messages.server import FinalNorm
from remote.shared.supervised.threads import Pool

if TYPE_CHECKING:
    from remote.parity.head import Head


def is_sampled(index: int, rate: float) -> bool:
    """Whether a record is in the sample; the same ones on every host, in every session and at every try."""
    return bool(xxhash.xxh3_64_intdigest(index.to_bytes(8, "little")) < rate * 2**64)


class Parity:
    """Compares records of the sample, one at a time."""

    def __init__(self, final: FinalNorm) -> None:
        self._final = final
        self._heads: dict[Path, Head] = {}
        self._thread = Pool(1, "parity")

    async def check(self, shard: Path, tokens: NDArray[np.int32], meta: dict[str, Any], model: Path) -> dict[str, Any]:
        """Compare a shard's final slot with `meta`, the server's answer; returns the measured numbers for the ledger.

        Raises RecordError where they disagree, HostError where the model's head cannot be read from `model`.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._check, shard, tokens, meta, model)

    def close(self) -> None:
        """End the thread; a comparison that nobody waits for any more is not begun."""
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

        if model not in self._heads:
            self._heads[model] = load_head(model)
        return self._heads[model]
