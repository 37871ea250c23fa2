"""The other model families on real SGLang: boundaries, the state after the last norm, and a prefix cache left on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine

LAYERS = (1, 3, 6 - 1)
LENGTHS = (9, 130, 64, 40)


def test_qwen3_moe(capturing: Any, prompts_of: Callable[..., Any], assert_right: Callable[..., float]) -> None:
    prompts = prompts_of(20, *LENGTHS)
    with capturing("qwen3_moe", ("--chunked-prefill-size", "64"), layers=LAYERS) as server:
        for path, prompt in zip(server.capture(prompts, "moe"), prompts, strict=True):
            assert_right(path, prompt, LAYERS, "qwen3_moe")


def test_qwen3_and_a_prefix_that_came_from_the_cache(
    capturing: Any, prompts_of: Callable[..., Any], assert_right: Callable[..., float]
) -> None:
    prompts = prompts_of(21, *LENGTHS)
    with capturing("qwen3", ("--chunked-prefill-size", "64"), layers=LAYERS, radix=True) as server:
        for path, prompt in zip(server.capture(prompts, "first"), prompts, strict=True):
            assert_right(path, prompt, LAYERS, "qwen3")
        for path in server.capture(prompts, "cached"):
            assert path.suffix == ".json"
            assert "were served from a prefix cache" in json.loads(path.read_text())["cause"]


def test_llama_with_the_state_after_the_last_norm(
    capturing: Any,
    prompts_of: Callable[..., Any],
    reference_of: Callable[..., Any],
    read_dump: Callable[..., Any],
) -> None:
    prompts = prompts_of(22, *LENGTHS)
    with capturing("llama", ("--chunked-prefill-size", "64"), layers=LAYERS, final="post") as server:
        for path, prompt in zip(server.capture(prompts, "post"), prompts, strict=True):
            dump, reference = read_dump(path), reference_of("llama")
            truth = reference.boundaries(prompt)
            for slot, boundary in enumerate(LAYERS):
                assert_close(dump.states[:, slot], truth[boundary])
            assert_close(dump.states[:, -1], reference.normed(prompt))
            assert dump.metadata["final"] == "post"


def assert_close(found: Any, wanted: Any) -> None:
    assert float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max()) <= 1e-5
