"""Answers as messages: each family's calls read back from its own chat template's text, and Harmony's channels."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from remote.answer.conversation import Conversation, Sampled
from remote.answer.said import makes, may_call, message_of
from remote.answer.speaker import Prompt, Speaker
from remote.data.asking import Script
from remote.data.carried import load_carried
from remote.data.tokenizer import TokenizerSpec
from remote.shared.messages.run import Answering
from tests.remote.data.samples import MakeTokenizer
from tests.remote.data.test_real_templates import CALL, FOLDER, SPECIALS, TOOLS

CODER = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"  # Qwen3-Coder
WRITTEN = {**CALL, "qwen3-coder": CODER}
THOUGHT = "<|channel|>analysis<|message|>They greet.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Hello!<|return|>"
HARMONY_CALL = f'{THOUGHT} to=functions.add<|channel|>commentary json<|message|>{{"a": 1}}<|call|>'


def calling(name: str = "add", **arguments: Any) -> dict[str, Any]:
    """A turn of the data that calls one function."""
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize("family", WRITTEN)
def test_a_call_is_read_in_each_familys_form(family: str) -> None:
    text = WRITTEN[family]
    assert may_call(text)
    assert makes(text, calling(a=1))
    assert not makes(text, calling(a=2))
    assert not makes(text, calling("sub", a=1))
    assert not makes(text, calling(a=1, b=1))


def test_arguments_of_every_type_are_compared_in_xml() -> None:
    values = {"city": "San Jose", "days": 3, "deep": {"b": [1, 2], "a": None}, "lines": "one\ntwo"}
    written = {"city": "San Jose", "days": "3", "deep": '{"a": null, "b": [1,2]}', "lines": "one\ntwo"}
    inner = "\n".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>" for key, value in written.items())
    assert makes(f"<tool_call>weather\n{inner}\n</tool_call>", calling("weather", **values))
    assert not makes(f"<tool_call>weather\n{inner}\n</tool_call>", calling("weather", **{**values, "city": "Lima"}))


def test_a_call_without_arguments_and_two_calls_in_order() -> None:
    text = "<tool_call>now\n</tool_call>\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    both = {"tool_calls": [*calling("now")["tool_calls"], *calling(a=1)["tool_calls"]]}
    assert makes(text, both)
    assert not makes(text, {"tool_calls": both["tool_calls"][::-1]})


@pytest.mark.parametrize("text", ["Two.", "", "a {b} c", "functions are fine", '{"name": 1}', "<|channel|>", "<invoke"])
def test_text_without_a_call_has_no_calls(text: str) -> None:
    assert not makes(text, calling(a=1))


def test_harmony_channels_become_thinking_content_and_calls() -> None:
    assert message_of(THOUGHT + FINAL) == {
        "role": "assistant",
        "content": "Hello!",
        "reasoning_content": "They greet.",
    }
    called = message_of(HARMONY_CALL)
    assert (called["content"], called["reasoning_content"]) == ("", "They greet.")
    assert [one["function"]["name"] for one in called["tool_calls"]] == ["add"]
    assert message_of("Plain.") == {"role": "assistant", "content": "Plain."}


def held(said: list[str], script: Script, make_tokenizer: MakeTokenizer, tmp_path: Any) -> tuple[Conversation, Speaker]:
    """A conversation with gpt-oss's template, in which the model says these texts in turn."""
    folder = make_tokenizer((FOLDER / "gpt-oss.jinja").read_text(), specials=[*SPECIALS["gpt-oss"], "<|end|>"])
    tokenizer, _ = load_carried(TokenizerSpec(str(folder)), tmp_path / "carried", proved=False)
    speaker = Speaker(tokenizer, Answering(temperature=0.0, max_tokens=40, template="", date="2026-01-31"))
    talk = Conversation(speaker, script, speaker.encode("opening"), 10_000)

    async def ask(number: int, _: Prompt) -> Sampled:
        return Sampled(speaker.encode(said[number]), "stop", None, 0, None, 0)

    asyncio.run(talk.hold(ask))
    return talk, speaker


def test_a_later_turn_of_a_harmony_conversation_shows_the_answer_without_its_thinking(
    make_tokenizer: MakeTokenizer, tmp_path: Any
) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "old"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "older"},
    ]
    talk, speaker = held([THOUGHT + FINAL] * 2, Script(messages, [], [1, 3]), make_tokenizer, tmp_path)
    assert (talk.ended, len(talk.turns)) == ("", 2)
    shown = speaker.decode(talk.turns[1].prompt.ids)
    assert "<|channel|>final<|message|>Hello!<|end|>" in shown
    assert "They greet." not in shown
    assert [int(mask.sum()) for _, mask in talk.rows()] == [len(speaker.encode(THOUGHT + FINAL))] * 2


def test_a_harmony_call_is_followed_by_the_data_s_result(make_tokenizer: MakeTokenizer, tmp_path: Any) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "1+1?"},
        calling(a=1),
        {"role": "tool", "name": "add", "content": "2"},
        {"role": "assistant", "content": "Two."},
    ]
    talk, speaker = held([HARMONY_CALL, FINAL], Script(messages, TOOLS, [1, 3]), make_tokenizer, tmp_path)
    assert (talk.ended, len(talk.turns)) == ("", 2)
    shown = speaker.decode(talk.turns[1].prompt.ids)
    assert "They greet." in shown
    assert " to=functions.add" in shown
    assert np.array_equal(talk.turns[1].sampled.ids, speaker.encode(FINAL))
