"""The engine's shims: unmodified SGLang serves MLA and mixture-of-experts models on this CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from hosts.practice.serving import CpuServer

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_moe"])
def test_a_served_models_logprobs_are_those_of_transformers(
    family: str, tiny_model_of: Callable[..., Path], cpu_server: Callable[..., CpuServer]
) -> None:
    model = tiny_model_of(family)
    ids = [(7 * i) % 256 for i in range(48)]
    answer = cpu_server(model=model).post(
        "/generate",
        {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
        },
    )
    served = torch.tensor([row[0] for row in answer["meta_info"]["input_token_logprobs"][1:]])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(torch.tensor([ids])).logits[0]
    expected = logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    torch.testing.assert_close(served, expected, rtol=1e-4, atol=1e-4)
