"""The patch in a real server: its captured states equal transformers', with no plugin on the path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.attach.ways import environment
from tests.remote.attach.conftest import Host
from tests.remote.capture.conftest import RELATIVE, assert_right, capturing, read_dump

__all__ = ["assert_right", "capturing", "read_dump"]  # fixtures

LAYERS = (0, 3, 5)


@pytest.mark.engine
def test_a_patched_server_writes_what_transformers_computes(
    checkout: Host,
    clone: Path,
    capturing: Callable[..., Any],
    prompts_of: Callable[..., list[list[int]]],
    assert_right: Callable[..., float],
) -> None:
    checkout.attach(families=["deepseek"])
    prompts = prompts_of(1, 5, 40, 1, 90)
    with capturing(layers=LAYERS, env=environment("patch", clone, checkout.env)) as server:
        dumps = server.capture(prompts, "patched")
        errors = [assert_right(dump, prompt, LAYERS) for dump, prompt in zip(dumps, prompts, strict=True)]
    assert max(errors) <= RELATIVE
