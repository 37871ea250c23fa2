"""tiktoken in place of the `tokenizers` library: the same ids and masks, or not taken at all."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from remote.data.encoding import FastEncoder
from remote.data.ranked import RankedEncoder, prove
from tests.remote.data.samples import SPECIALS

ROOT = Path(__file__).parents[3]
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{_WORDS}|\p{{N}}|{_REST}"
LLAMA = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
GPT_OSS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ODD = "aA1 's\n\r\t.,\u017fKtTdDlLmM中文éß²½\u3000\u200b\u00a0x/'"


@pytest.fixture(scope="module", params=[QWEN, LLAMA, GPT_OSS, ""], ids=["qwen", "llama", "gpt-oss", "gpt-2"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(request.param)


def trained(pattern: str) -> Tokenizer:
    """A tokenizer of 3,000 tokens, trained on this repository's own pages; "" splits as GPT-2 does."""
    made = Tokenizer(models.BPE())
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)
    split = pre_tokenizers.Split(Regex(pattern or "."), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise]) if pattern else bytewise
    made.normalizer = normalizers.NFC() if pattern == QWEN else None
    trainer = trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train([str(path) for path in sorted((ROOT / "docs").glob("*.md"))], trainer)
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return made


def texts(count: int) -> list[str]:
    """Pages, and random texts of letters, of odd characters, and of all that Unicode has."""
    chance = random.Random(7)
    every = [chr(point) for point in (*range(0xD800), *range(0xE000, 0x34000), 0xE0100, 0xF0000)]
    made = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    for number in range(count):
        letters = ("ab c" if number % 3 == 0 else ODD) if number % 3 != 1 else every
        words = [chance.choice(SPECIALS) if chance.random() < 0.03 else chance.choice(letters) for _ in range(90)]
        made.append("".join(word * chance.choice((1, 1, 1, 5)) for word in words))
    return made


def encoder_of(tokenizer: Tokenizer) -> RankedEncoder:
    found = prove(tokenizer.to_str())
    assert found is not None
    return RankedEncoder(found, lambda: FastEncoder(tokenizer))


def test_ids_and_masks_are_those_of_the_tokenizers_library(tokenizer: Tokenizer) -> None:
    ranked, plain = encoder_of(tokenizer), FastEncoder(tokenizer)
    given = texts(600)
    spans = [[(3, len(text) // 2), (len(text) - 9, len(text))] for text in given]
    for text, span, (ids, mask) in zip(given, spans, plain.encode(given, spans), strict=True):
        made = ranked.encode([text], [span])[0]
        np.testing.assert_array_equal(made[0], ids, err_msg=repr(text))
        np.testing.assert_array_equal(made[1], mask, err_msg=repr(text))


def test_most_texts_are_encoded_without_the_tokenizers_library(tokenizer: Tokenizer) -> None:
    def fail() -> FastEncoder:
        raise AssertionError("a text was left to the tokenizers library")

    found = prove(tokenizer.to_str())
    assert found is not None
    pages = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    RankedEncoder(found, fail).encode(pages, [[]] * len(pages))


def test_white_space_without_end_is_left_to_the_tokenizers_library() -> None:
    made = trained(QWEN)
    text = " " * 300_000 + "x"
    (ids, _) = encoder_of(made).encode([text], [[]])[0]
    assert ids.tolist() == made.encode(text, add_special_tokens=False).ids


def changed(tokenizer: Tokenizer, change: Any) -> str:
    state = json.loads(tokenizer.to_str())
    change(state)
    return json.dumps(state)


def test_a_tokenizer_that_may_differ_is_not_encoded_with_tiktoken() -> None:
    made = trained(QWEN)
    model = json.loads(made.to_str())["model"]
    last = model["merges"][-1]
    assert prove(changed(made, lambda state: None)) is not None

    def moved(state: dict[str, Any]) -> None:  # the last merge first: its parts are not made yet
        state["model"]["merges"].insert(0, state["model"]["merges"].pop())

    def joined(state: dict[str, Any]) -> None:  # a token that the merges of its own bytes never come to
        state["model"]["vocab"]["thx"] = 5000
        state["model"]["vocab"]["hx"] = 5001
        state["model"]["merges"] += [["h", "x"], ["t", "hx"]]

    def without_merge(state: dict[str, Any]) -> None:  # whole pieces are looked up, and this one has no merge
        state["model"]["ignore_merges"] = True
        state["model"]["vocab"]["qqqq"] = 5000

    def trimming(state: dict[str, Any]) -> None:
        state["added_tokens"][0]["lstrip"] = True

    def prefix(state: dict[str, Any]) -> None:
        state["added_tokens"][1]["content"] = state["added_tokens"][0]["content"] + ">"

    def folded(state: dict[str, Any]) -> None:
        state["normalizer"] = {"type": "Lowercase"}

    def possessive(state: dict[str, Any]) -> None:
        state["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = QWEN.replace(r"\p{L}+", r"\p{L}++")

    def dropping(state: dict[str, Any]) -> None:
        state["model"]["dropout"] = 0.1

    assert "".join(last) not in ("thx", "hx")
    for change in (moved, joined, without_merge, trimming, prefix, folded, possessive, dropping):
        assert prove(changed(made, change)) is None, change.__name__
