"""Several ranks of real SGLang on two CPU cores: tensor parallelism, DP attention, pipeline stages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.capture.stages import Part, join
from remote.parity.canary import check_canary
from remote.shared.shard.request_id import RequestId

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


def test_pipeline_stages_write_their_own_slots_and_the_parts_join(
    capturing: Any, prompts_of: Callable[..., Any], assert_right: Callable[..., float], tmp_path: Path
) -> None:
    prompts = prompts_of(33, *LENGTHS)
    with capturing(flags=("--pp-size", "2", *CHUNKED), layers=LAYERS, env=ENV) as server:
        first = RequestId("pp", 0, 0, LENGTHS[0])
        rids = [RequestId("pp", index, 0, length) for index, length in enumerate(LENGTHS)]
        server.send(prompts, rids)
        for rid, prompt in zip(rids, prompts, strict=True):
            parts = [server.await_one([path]) for path in Part(str(rid), 0, 2).siblings(server.dumps)]
            whole = tmp_path / f"{rid}.safetensors"
            join(parts, whole)
            assert_right(whole, prompt, LAYERS)
        canary = RequestId("canary", None, 0, 40)
        server.generate(prompts_of(34, 40)[0], str(canary))
        listened = [
            server.await_one([server.dumps / f"{canary}.canary.stage{stage}of2.safetensors"]) for stage in (0, 1)
        ]
        parts = [server.await_one([path]) for path in Part(str(canary), 0, 2).siblings(server.dumps)]
        whole = tmp_path / f"{canary}.safetensors"
        join(parts, whole)
        assert check_canary(whole, listened).passed
        assert {status.stages for status in server.statuses()} == {2}
        assert not (server.dumps / f"{first}.safetensors").exists()
