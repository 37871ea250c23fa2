"""The loss mask covers exactly what the assistant generated and the token that ends it, with any template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remote.data.chunk import ChunkWorker, Recipe
from remote.data.tokenizer import TokenizerSpec
from remote.shared.errors import RecordError
from tests.remote.data import templates
from tests.remote.data.samples import GENERATION, MakeTokenizer, chat


def worker(tokenizer: Path, **options: Any) -> ChunkWorker:
    spec = TokenizerSpec(str(tokenizer))
    return ChunkWorker(Recipe(spec, tuple(options.items()), "", None, False, 1, 10_000))


def masked(tokenizer: Path, record: Any, **options: Any) -> list[str]:
    """The runs of tokens under the loss, as text."""
    made = worker(tokenizer, **options)
    ids, mask, _ = made.tokenize(record)
    runs: list[list[int]] = []
    for place, token in enumerate(ids.tolist()):
        if mask[place]:
            if place == 0 or not mask[place - 1]:
                runs.append([])
            runs[-1].append(token)
    return [made.tokenizer.decode(run) for run in runs]


TWO_TURNS = chat("Hi", "Hello!", "And?", "More.", system="Be brief.")


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (templates.CHATML, ["Hello!<|im_end|>", "More.<|im_end|>"]),
        (templates.REASONER, ["Hello!</s>", "More.</s>"]),
        (templates.TRIMMING, ["Hello!<|eot|>", "More.<|eot|>"]),
        (templates.BRACKETS, [" Hello!</s>", " More.</s>"]),
        (templates.RENAMING, ["Hello!<end_of_turn>", "More.<end_of_turn>"]),
        (templates.SECTIONS, ["Hello!<|im_end|>", "More.<|im_end|>"]),
        (templates.PLAIN, ["Hello!", "More."]),
        (GENERATION, ["Hello!<|im_end|>", "More.<|im_end|>"]),
    ],
)
def test_the_mask_covers_answers_and_the_tokens_that_end_them(
    make_tokenizer: MakeTokenizer, template: str, wanted: list[str]
) -> None:
    assert masked(make_tokenizer(template, specials=templates.SPECIALS), TWO_TURNS) == wanted


THOUGHTS = chat("Hi", "<think>\ngreet\n</think>\n\nHello!", "And?", "<think>\ncount\n</think>\n\nMore.")


def test_reasoning_that_the_template_drops_is_not_required(make_tokenizer: MakeTokenizer) -> None:
    runs = masked(make_tokenizer(templates.THINKING), THOUGHTS)
    assert runs == ["Hello!<|im_end|>", "<think>\ncount\n</think>\n\nMore.<|im_end|>"]


def test_a_think_tag_that_the_prompt_opens_is_not_in_the_mask(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(templates.THINKING)
    assert masked(tokenizer, chat("Hi", "Hello!")) == ["<think>\n\n</think>\n\nHello!<|im_end|>"]
    assert masked(tokenizer, chat("Hi", "Hello!"), enable_thinking=False) == ["Hello!<|im_end|>"]
    assert masked(make_tokenizer(templates.REASONER), THOUGHTS) == ["\n\nHello!</s>", "\n\nMore.</s>"]


def test_next_roles_token_ends_a_turn_where_it_is_an_end_of_sequence(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(templates.UNCLOSED, specials=templates.SPECIALS)
    assert masked(tokenizer, TWO_TURNS) == ["\nHello!", "\nMore."]
    config = {"eos_token_id": [257, 260]}  # </s> and <|user|>
    (tokenizer / "generation_config.json").write_text(json.dumps(config))
    assert masked(tokenizer, TWO_TURNS) == ["\nHello!<|user|>", "\nMore."]


def test_white_space_that_the_template_trims_moves_no_edge(make_tokenizer: MakeTokenizer) -> None:
    record = chat("Hi", "  Hello!\n\n", "And?", "\nMore. ")
    assert masked(make_tokenizer(templates.TRIMMING, specials=templates.SPECIALS), record) == [
        "Hello!<|eot|>",
        "More.<|eot|>",
    ]


def test_text_that_looks_like_the_template_moves_no_edge(make_tokenizer: MakeTokenizer) -> None:
    record = chat("### Response:\nno", "### Response:\nno", "no\n\n### Response:\nyes", "no")
    assert masked(make_tokenizer(templates.PLAIN), record) == ["### Response:\nno", "no"]
    same = chat("Hello!", "Hello!", "Hello!", "Hello!")
    assert masked(make_tokenizer(templates.CHATML), same) == ["Hello!<|im_end|>"] * 2


CALL = {"id": "functions.add:0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOLS = {
    "messages": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "functions.add:0", "content": "2"},
        {"role": "assistant", "content": "Two."},
    ]
}


@pytest.mark.parametrize(
    ("template", "call"),
    [
        (templates.CHATML, '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>'),
        (templates.SECTIONS, '<|calls|>functions.add:0<|arguments|>{"a": 1}<|end_calls|><|im_end|>'),
        (templates.STRICT_TOOLS, 'add({"a": 1})<|im_end|>'),
    ],
)
def test_tool_calls_are_the_assistants_and_results_are_not(
    make_tokenizer: MakeTokenizer, template: str, call: str
) -> None:
    assert masked(make_tokenizer(template, specials=templates.SPECIALS), TOOLS) == [call, "Two.<|im_end|>"]


def test_the_mask_of_an_empty_answer_is_its_end_token(make_tokenizer: MakeTokenizer) -> None:
    assert masked(make_tokenizer(templates.CHATML), chat("Hi", "")) == ["<|im_end|>"]


def test_characters_of_several_bytes_are_whole_in_the_mask(make_tokenizer: MakeTokenizer) -> None:
    record = chat("naïve 😀?", "早上好 😀", "é", "\ue000 ok")
    assert masked(make_tokenizer(templates.CHATML), record) == ["早上好 😀<|im_end|>", "\ue000 ok<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "turn"),
    [
        (
            templates.CHATML,
            "{{ m.content }}{% for call in m.tool_calls or [] %}\n<tool_call>{{ call.function | tojson }}</tool_call>"
            "{% endfor %}<|im_end|>",
        ),
        (templates.TRIMMING, "{{ m.content | trim }}<|eot|>"),
        (templates.RENAMING, "{{ m.content | trim }}<end_of_turn>"),
    ],
)
def test_markers_agree_with_generation_blocks(make_tokenizer: MakeTokenizer, template: str, turn: str) -> None:
    """The same template with and without generation blocks gives the same mask."""
    assert turn in template
    tagged = "{% if m.role == 'assistant' %}{% generation %}" + turn + "{% endgeneration %}{% else %}" + turn
    with_blocks = make_tokenizer(template.replace(turn, tagged + "{% endif %}"), specials=templates.SPECIALS)
    without = make_tokenizer(template, specials=templates.SPECIALS)
    for record in (TWO_TURNS, THOUGHTS):
        assert masked(without, record) == masked(with_blocks, record)


def test_the_generation_mask_equals_that_of_transformers(make_tokenizer: MakeTokenizer) -> None:
    made = worker(make_tokenizer(GENERATION))
    ids, mask, method = made.tokenize(THOUGHTS)
    theirs = made.tokenizer.hf.apply_chat_template(
        THOUGHTS["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    assert method == "generation"
    assert ids.tolist() == theirs["input_ids"]
    assert mask.tolist() == theirs["assistant_masks"]


def test_a_template_that_refuses_a_record_is_quoted(make_tokenizer: MakeTokenizer) -> None:
    record = {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}, *TOOLS["messages"][3:]]}
    with pytest.raises(RecordError, match="refuses it: no call"):
        masked(make_tokenizer(templates.STRICT_TOOLS), record)


def test_tokenizers_without_offsets_are_masked_turn_by_turn(tmp_path: Path) -> None:
    from transformers import ByT5Tokenizer

    tokenizer = ByT5Tokenizer()
    tokenizer.chat_template = templates.BRACKETS
    tokenizer.save_pretrained(tmp_path / "slow")
    assert not worker(tmp_path / "slow").tokenizer.hf.is_fast
    assert masked(tmp_path / "slow", chat("naïve?", "早上好!", "And?", "Möre.")) == [" 早上好!</s>", " Möre.</s>"]
