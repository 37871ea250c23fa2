"""The tiny models: transformers loads every family whole, and the chat template marks the assistant's tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hosts.practice.engine.families import FAMILIES
from hosts.practice.engine.tiny_model import make_model

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße  an \N{SNOWMAN}?"},
    {"role": "assistant", "content": "Danke."},
    {"role": "user", "content": "Call it."},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": "It is 42."},
]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_transformers_loads_every_weight_and_no_other(family: str, tiny_model_of: Callable[..., Path]) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(
        tiny_model_of(family), dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values())
    states = model(torch.arange(32)[None], output_hidden_states=True).hidden_states
    assert len(states) == 7
    assert all(bool(state.isfinite().all()) for state in states)


def test_the_same_options_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        make_model(tmp_path / name, family="llama", layers=2, dtype="bfloat16")
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("first", "second"))
    assert first == second


def test_text_survives_the_byte_tokenizer(tiny_model_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path)
    text = "  it's  \N{SNOWMAN}\n\ttwo  spaces "
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_the_mask_covers_what_the_assistant_wrote_and_its_end_of_turn(tiny_model_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path)
    encoded = tokenizer.apply_chat_template(CONVERSATION, return_assistant_tokens_mask=True, return_dict=True)
    kept = [i for i, mask in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mask]
    assert tokenizer.decode(kept) == 'Danke.<|end|>{"name": "f", "arguments": {}}<|end|>It is 42.<|end|>'


def test_an_unknown_role_is_refused(tiny_model_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path)
    with pytest.raises(Exception, match="unknown role oracle"):
        tokenizer.apply_chat_template([{"role": "oracle", "content": "x"}])
