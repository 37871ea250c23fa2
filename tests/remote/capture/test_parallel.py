"""Several ranks of real SGLang on two CPU cores: tensor parallelism, DP attention, pipeline stages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hosts.practice.engine.families import HIDDEN
from remote.capture import VERSION
from remote.extract.dump import Expected
from remote.extract.join import join
from remote.extract.store import store
from remote.parity.canary import check_canary
from remote.shared.shard.names import WHOLE, stage_suffix
from remote.shared.shard.request_id import RequestId
from tests.identities import run_identity

pytestmark = pytest.mark.engine

LAYERS = (2, 3, 5)
LENGTHS = (5, 70, 33, 64, 129, 18)
ENV = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
CHUNKED = ("--chunked-prefill-size", "64")


@pytest.mark.parametrize(
    ("flags", "writers"),
    [(("--tp-size", "2"), 1), (("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"), 2)],
    ids=["tp2", "dp2"],
)
def test_each_request_is_written_once_by_the_ranks_that_hold_it(
    capturing: Any,
    prompts_of: Callable[..., Any],
    assert_right: Callable[..., float],
    flags: tuple[str, ...],
    writers: int,
) -> None:
    prompts = prompts_of(30, *LENGTHS)
    with capturing(flags=(*flags, "--chunked-prefill-size", str(64 * writers)), layers=LAYERS, env=ENV) as server:
        for nonce in ("one", "two"):
            for path, prompt in zip(server.capture(prompts, nonce, new_tokens=3), prompts, strict=True):
                assert_right(path, prompt, LAYERS)
        # A rank without requests takes part in the collectives and writes nothing.
        alone = prompts_of(31, 77)
        assert_right(server.capture(alone, "alone")[0], alone[0], LAYERS)
        canary = RequestId("canary", None, 0, 40)
        server.generate(prompts_of(32, 40)[0], str(canary))
        listened = server.await_one([server.dumps / f"{canary}.canary.safetensors"])
        assert check_canary(server.outcome(canary), [listened]).passed
        statuses = server.statuses()
        assert len(statuses) == writers
        assert all(status.failed == 0 for status in statuses)


def test_pipeline_stages_write_their_own_slots_and_the_collector_joins_the_parts(
    capturing: Any, prompts_of: Callable[..., Any], assert_right: Callable[..., float], tmp_path: Path
) -> None:
    prompts = prompts_of(33, *LENGTHS)
    with capturing(flags=("--pp-size", "2", *CHUNKED), layers=LAYERS, env=ENV) as server:

        def joined(rid: RequestId) -> Path:
            parts = [server.await_one([server.dumps / f"{rid}{stage_suffix(k, 2)}{WHOLE}"]) for k in (0, 1)]
            assert not (server.dumps / f"{rid}{WHOLE}").exists()
            join(parts, tmp_path / f"{rid}{WHOLE}")
            return tmp_path / f"{rid}{WHOLE}"

        rids = [RequestId("pp", index, 0, length) for index, length in enumerate(LENGTHS)]
        server.send(prompts, rids)
        for rid, prompt in zip(rids, prompts, strict=True):
            shard = tmp_path / f"hs_{rid.index}{WHOLE}"
            store(joined(rid), shard, expected(rid, prompt, server.statuses()[0].sglang))
            assert_right(shard, prompt, LAYERS)
        canary = RequestId("canary", None, 0, 40)
        server.generate(prompts_of(34, 40)[0], str(canary))
        listened = [
            server.await_one([server.dumps / f"{canary}.canary.stage{stage}of2.safetensors"]) for stage in (0, 1)
        ]
        assert check_canary(joined(canary), listened).passed
        assert {status.stages for status in server.statuses()} == {2}


def expected(rid: RequestId, prompt: list[int], sglang: str) -> Expected:
    """What the collector wants to hear from the dump of a record of the practice model, which has 6 blocks."""
    identity = run_identity(boundaries=(*LAYERS, 6), hidden_size=HIDDEN, dtype="F32")
    assert rid.index is not None
    return Expected(str(rid), rid.index, np.array(prompt, np.int32), identity, sglang, VERSION)
