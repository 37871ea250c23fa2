"""The server's answer is read in SGLang's form, and an answer about other tokens is not compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from remote.parity.logprobs import LogprobParity, ServerLogprobs, deviations, rms_norm

ROWS, HIDDEN, VOCABULARY = 6, 16, 11
TOKENS = [3, VOCABULARY - 1, 5, 0, VOCABULARY - 1, 2]


@pytest.fixture
def model() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "rows": torch.randn(ROWS, HIDDEN, generator=generator),
        "norm": 1 + 0.1 * torch.randn(HIDDEN, generator=generator),
        "head": torch.randn(VOCABULARY, HIDDEN, generator=generator),
    }


def answer(model: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, Any]:
    """As `/generate` gives it: the first position has no logprob, the last vocabulary entry is called 0."""
    normed = rms_norm(model["rows"], model["norm"], 1e-6, dtype)
    logprobs = (normed @ model["head"].to(dtype).T).float().log_softmax(-1)
    best = logprobs.argmax(-1)
    said: list[Any] = [[None, TOKENS[0], None]]
    for row, token in enumerate(TOKENS[1:]):
        said.append([float(logprobs[row, token]), 0 if token == VOCABULARY - 1 else token, None])
    top = [[[float(logprobs[row, best[row]]), int(best[row]), None]] for row in range(ROWS)]
    return {
        "input_token_logprobs": said,
        "output_token_logprobs": [[float(logprobs[-1, best[-1]]), int(best[-1]), None]],
        "input_top_logprobs": [None, *top[:-1]],
        "output_top_logprobs": [top[-1]],
    }


def check(model: dict[str, torch.Tensor], meta: dict[str, Any], dtype: torch.dtype) -> LogprobParity:
    said = ServerLogprobs.of_answer(meta)
    found: LogprobParity = deviations(model["rows"], TOKENS, said, model["norm"], 1e-6, model["head"], dtype).summary()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row_is_compared_the_last_one_by_the_generated_token(
    model: dict[str, torch.Tensor], dtype: torch.dtype
) -> None:
    found = check(model, answer(model, dtype), dtype)
    assert found.passed
    assert (found.rows, found.top1) == (ROWS, 1.0)
    model["rows"][-1] = 0
    found = check(model, answer(model, dtype) | {"output_token_logprobs": [[-0.1, 1, None]]}, dtype)
    assert (found.passed, found.worst_row) == (False, ROWS - 1)


def test_an_answer_about_other_tokens_is_refused(model: dict[str, torch.Tensor]) -> None:
    meta = answer(model, torch.float32)
    meta["input_token_logprobs"][3][1] = 7
    with pytest.raises(ValueError, match="of row 2 is about token 7, but 0 was sent"):
        check(model, meta, torch.float32)


def test_an_answer_without_logprobs_is_named() -> None:
    with pytest.raises(ValueError, match="no input logprobs"):
        ServerLogprobs.of_answer({"output_token_logprobs": []})


def test_a_row_that_is_not_finite_does_not_pass(model: dict[str, torch.Tensor]) -> None:
    meta = answer(model, torch.float32)
    model["rows"][2] = float("nan")
    assert not check(model, meta, torch.float32).passed
