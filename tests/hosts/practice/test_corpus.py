"""The practice corpus: real multi-turn text of the promised size, the same every time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hosts.practice.corpus import SHAPE, Conversation, conversations
from hosts.practice.serving import CONTEXT_LENGTH


@pytest.fixture(scope="module")
def corpus() -> list[Conversation]:
    return conversations()


def test_the_corpus_has_the_promised_size_and_spread(corpus: list[Conversation]) -> None:
    lengths = sorted(sum(len(message["content"].encode()) for message in one) for one in corpus)
    assert len(corpus) == sum(count for _, _, count in SHAPE) == 300
    assert 60_000 < sum(lengths) < 100_000
    assert lengths[0] < 100
    assert lengths[-1] > 2_000


def test_every_conversation_fits_the_tiny_models_context(corpus: list[Conversation]) -> None:
    longest = max(sum(len(message["content"].encode()) + 2 for message in one) + 1 for one in corpus)
    assert longest <= CONTEXT_LENGTH


def test_turns_alternate_and_end_with_an_answer(corpus: list[Conversation]) -> None:
    for conversation in corpus:
        roles = [message["role"] for message in conversation if message["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(message["content"] for message in conversation)
    assert sum(len(one) > 3 for one in corpus) > 100


def test_no_two_conversations_are_the_same(corpus: list[Conversation]) -> None:
    assert len({json.dumps(one) for one in corpus}) == len(corpus)


def test_another_process_with_another_hash_seed_writes_the_same_corpus(
    corpus: list[Conversation], tmp_path: Path
) -> None:
    out = tmp_path / "corpus.jsonl"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-m", "hosts.practice.corpus", str(out)], check=True, env=environment)
    assert [json.loads(line)["messages"] for line in out.read_text().splitlines()] == corpus
