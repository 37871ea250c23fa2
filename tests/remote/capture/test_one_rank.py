"""One rank of a real server on CPU in float32: every slot of every row equals transformers'."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine

LAYERS = (0, 2, 3, 5)
CHUNK = 64


def prompts_of(seed: int, *lengths: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(256) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def server(capturing: Callable[..., Any]) -> Any:
    return capturing(flags=("--chunked-prefill-size", str(CHUNK)), layers=LAYERS)


def test_unequal_prompts_in_flight_together_are_each_right(server: Any, assert_right: Callable[..., float]) -> None:
    prompts = prompts_of(1, 5, 40, 17, 63, 1, 200, 33, 90)
    for path, prompt in zip(server.capture(prompts, "batch"), prompts, strict=True):
        assert_right(path, prompt, LAYERS)
