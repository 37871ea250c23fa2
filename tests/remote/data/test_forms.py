"""In any form of a record, the assistant's words are under the loss, or the record is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remote.data.chunk import ChunkWorker, Recipe
from remote.data.records import Reading
from remote.data.tokenizer import TokenizerSpec
from remote.shared.errors import RecordError
from tests.remote.data import templates
from tests.remote.data.samples import GENERATION, MakeTokenizer

USER = {"role": "user", "content": "How high?"}
ANSWER = {"role": "assistant", "content": "8,849 m"}
CALL = {"name": "height", "arguments": '{"of": "Everest"}'}


def worker(tokenizer: Path, reading: Reading = Reading()) -> ChunkWorker:  # noqa: B008
    return ChunkWorker(Recipe(TokenizerSpec(str(tokenizer)), (), "", None, False, 1, 10_000, reading))


def under_loss(made: ChunkWorker, record: Any) -> list[str]:
    """The runs of tokens under the loss, as text."""
    ids, mask, _ = made.tokenize(record)
    runs: list[list[int]] = []
    for place, token in enumerate(ids.tolist()):
        if mask[place]:
            if place == 0 or not mask[place - 1]:
                runs.append([])
            runs[-1].append(token)
    return [made.tokenizer.decode(run) for run in runs]


@pytest.fixture
def chatml(make_tokenizer: MakeTokenizer) -> ChunkWorker:
    return worker(make_tokenizer(templates.CHATML))


@pytest.fixture
def thinker(make_tokenizer: MakeTokenizer) -> ChunkWorker:
    return worker(make_tokenizer(templates.REASONING_KEY))


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER, ANSWER]},
        {"conversation": [USER, ANSWER], "model": "vicuna-13b", "turn": 1},
        {"conversations": [{"from": "Human", "value": "How high?"}, {"from": "GPT", "value": "8,849 m"}]},
        {"messages": [{"role": "USER", "content": "How high?"}, {"role": " Assistant ", "content": "8,849 m"}]},
        {"messages": [{"role": "human", "content": "How high?"}, {"role": "model", "content": "8,849 m"}]},
        {"messages": [{"role": "User", "text": "How high?"}, {"role": "bot", "text": "8,849 m"}]},
        {"input": "How high?", "output": "8,849 m"},
        {"input": [USER], "output": [ANSWER], "reasoning": "off"},
        {"input": USER, "output": ANSWER},
        {"prompt": [USER], "completion": [ANSWER]},
        {"instruction": "How high?", "input": "", "output": "8,849 m"},
        {"query": "How high?", "response": "8,849 m"},
        {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "8,849"}, {"text": " m"}]}]},
    ],
)
def test_every_form_of_a_conversation_is_the_same_record(chatml: ChunkWorker, record: Any) -> None:
    ids, mask, _ = chatml.tokenize(record)
    wanted, wanted_mask, _ = chatml.tokenize({"messages": [USER, ANSWER]})
    assert ids.tolist() == wanted.tolist()
    assert mask.tolist() == wanted_mask.tolist()
    assert under_loss(chatml, record) == ["8,849 m<|im_end|>"]


@pytest.mark.parametrize("key", ["system", "system_prompt"])
@pytest.mark.parametrize("record", [{"messages": [USER, ANSWER]}, {"input": [USER], "output": "8,849 m"}])
def test_a_system_text_of_the_record_leads_the_conversation(chatml: ChunkWorker, key: str, record: Any) -> None:
    ids, _, _ = chatml.tokenize({**record, key: "Be exact."})
    assert chatml.tokenizer.decode(ids.tolist()).startswith("<|im_start|>system\nBe exact.<|im_end|>")


THOUGHT = "The highest one."
SHOWN = [f"<think>\n{THOUGHT}\n</think>\n\n8,849 m<|im_end|>"]
REASONED = [
    {"messages": [USER, {**ANSWER, "reasoning_content": THOUGHT}]},
    {"messages": [USER, {**ANSWER, "reasoning": THOUGHT}]},
    {"messages": [USER, {**ANSWER, "thinking": THOUGHT}]},
    {"messages": [USER, {**ANSWER, "thinking": THOUGHT, "reasoning": THOUGHT}]},
    {
        "messages": [
            USER,
            {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n8,849 m", "thinking": THOUGHT},
        ]
    },
    {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": THOUGHT}, {"text": "8,849 m"}]},
        ]
    },
    {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "reasoning", "text": THOUGHT}, {"text": "8,849 m"}]},
        ]
    },
    {"prompt": "How high?", "response": "8,849 m", "reasoning": THOUGHT},
]


@pytest.mark.parametrize("record", REASONED)
@pytest.mark.parametrize("template", [templates.REASONING_KEY, templates.THINKING, templates.THINKING_KEY])
def test_reasoning_goes_to_the_key_that_the_template_reads(
    make_tokenizer: MakeTokenizer, template: str, record: Any
) -> None:
    assert under_loss(worker(make_tokenizer(template)), record) == SHOWN


@pytest.mark.parametrize("record", REASONED)
@pytest.mark.parametrize("template", [templates.CHATML, templates.RENAMING, GENERATION])
def test_reasoning_that_the_template_cannot_show_is_refused(
    make_tokenizer: MakeTokenizer, template: str, record: Any
) -> None:
    with pytest.raises(RecordError, match=r"message 1 .* (reasoning|thinking)"):
        under_loss(worker(make_tokenizer(template, specials=templates.SPECIALS)), record)


def test_reasoning_that_the_template_always_leaves_out_is_refused(make_tokenizer: MakeTokenizer) -> None:
    with pytest.raises(RecordError, match="reads it from no key"):
        under_loss(worker(make_tokenizer(templates.REASONER)), REASONED[0])


def test_reasoning_of_earlier_turns_is_left_to_the_template_and_counted(thinker: ChunkWorker) -> None:
    earlier = {**ANSWER, "reasoning": "An earlier thought."}
    record = {"messages": [USER, earlier, USER, {**ANSWER, "reasoning": THOUGHT}]}
    assert under_loss(thinker, record) == ["8,849 m<|im_end|>", *SHOWN]
    made = thinker._read(record)
    assert made.unread == {"assistant.reasoning of an earlier turn": 1}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"reasoning": "a", "thinking": "b"}, "reasoning and thinking with different texts"),
        ({"content": "<think>a</think>x", "reasoning": "b"}, "different thinking in its content"),
        ({"reasoning": {"text": "a"}}, "reasoning of message 1 is a dict"),
        ({"content": [{"text": "x"}, {"type": "thinking", "thinking": "a"}]}, "reasoning after its answer"),
        ({"content": [{"type": "image_url", "image_url": "x"}]}, r"not text \(image_url\)"),
        ({"content": [{"type": "image", "text": "caption"}]}, r"not text \(image\)"),
        ({"content": [{"type": "tool_use", "name": "f", "input": {}}]}, r"not text \(tool_use\)"),
        ({"content": None, "refusal": "I will not."}, "'refusal'"),
        ({"content": "", "audio": {"id": "a1", "transcript": "8,849"}}, "'audio'"),
        ({"content": "8,849 m", "draft": "about 9 km"}, "'draft'"),
        ({"content": "8,849 m", "text": "another"}, "'text'"),
        ({"tool_calls": "[nonsense"}, "the tool calls of message 1, a text, cannot be read"),
        ({"tool_calls": [{"function": {"arguments": "{}"}}]}, "does not name its function"),
        ({"tool_calls": [{"function": CALL}], "function_call": {**CALL, "name": "other"}}, "a different function_call"),
    ],
)
def test_content_that_cannot_be_shown_makes_the_record_unusable_by_name(
    thinker: ChunkWorker, message: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        thinker.tokenize({"messages": [USER, {**ANSWER, **message}]})


def test_tool_calls_that_the_template_does_not_read_are_refused(make_tokenizer: MakeTokenizer) -> None:
    gemma = worker(make_tokenizer(templates.RENAMING, specials=templates.SPECIALS))
    record = {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [{"function": CALL}]}]}
    with pytest.raises(RecordError, match="tool calls, which the chat template does not read"):
        gemma.tokenize(record)


def test_an_answer_that_the_template_drops_beside_a_call_is_refused(make_tokenizer: MakeTokenizer) -> None:
    llama = worker(make_tokenizer(templates.CALL_OR_CONTENT))
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": CALL}]}
    assert len(under_loss(llama, {"messages": [USER, call]})) == 1
    with pytest.raises(RecordError, match="shows nothing of what message 1"):
        llama.tokenize({"messages": [USER, {**call, "content": "Let me look."}]})


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER, {"role": "assistant", "content": None, "function_call": CALL}]},
        {
            "messages": [
                USER,
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]},
            ]
        },
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": CALL}], "function_call": CALL}]},
        {"conversations": [{"from": "human", "value": "How high?"}, {"from": "function_call", "value": CALL}]},
    ],
)
def test_every_form_of_a_call_is_the_same_call(chatml: ChunkWorker, record: Any) -> None:
    call = '<tool_call>{"name": "height", "arguments": {"of": "Everest"}}</tool_call><|im_end|>'
    assert under_loss(chatml, record) == [call]


@pytest.mark.parametrize("role", ["function", "tool", "observation", "ipython", "Tool"])
def test_every_name_of_a_tool_s_role_is_one(chatml: ChunkWorker, role: str) -> None:
    call = {"role": "assistant", "content": None, "function_call": CALL}
    ids, _, _ = chatml.tokenize({"messages": [USER, call, {"role": role, "name": "height", "content": "8849"}, ANSWER]})
    assert "<|im_start|>tool\n8849<|im_end|>" in chatml.tokenizer.decode(ids.tolist())


@pytest.mark.parametrize("template", [templates.SECTIONS, templates.STRICT_IDS])
def test_missing_ids_that_the_model_would_write_are_not_invented(make_tokenizer: MakeTokenizer, template: str) -> None:
    made = worker(make_tokenizer(template, specials=templates.SPECIALS))
    record = {"messages": [USER, {"role": "assistant", "content": "", "function_call": CALL}]}
    with pytest.raises(RecordError, match="a tool call without an id"):
        made.tokenize(record)


def test_an_id_that_hides_the_function_s_name_is_refused(make_tokenizer: MakeTokenizer) -> None:
    kimi = worker(make_tokenizer(templates.SECTIONS, specials=templates.SPECIALS))
    call = {"id": "call_7", "type": "function", "function": CALL}
    with pytest.raises(RecordError, match=r"'call_7' in message 1 .* does not name 'height'"):
        kimi.tokenize({"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]})


@pytest.mark.parametrize("key", ["weight", "loss", "train", "loss_mask", "mask", "trainable"])
@pytest.mark.parametrize(("no", "yes"), [(0, 1), (False, True), (0.0, 1.0), (0, None)])
@pytest.mark.parametrize("template", [GENERATION, templates.THINKING])
def test_the_mask_obeys_the_weight_of_each_message(
    make_tokenizer: MakeTokenizer, template: str, key: str, no: Any, yes: Any
) -> None:
    wrong, right = {"role": "assistant", "content": "9 km", key: no}, {**ANSWER, key: yes}
    record = {"messages": [{**USER, key: no}, wrong, {"role": "user", "content": "No."}, right]}
    (run,) = under_loss(worker(make_tokenizer(template)), record)
    assert run.endswith("8,849 m<|im_end|>")


@pytest.mark.parametrize("value", [2, -1, 0.5, "1", "yes", [1]])
def test_any_other_weight_is_refused(chatml: ChunkWorker, value: Any) -> None:
    with pytest.raises(RecordError, match=r"message 1 has the weight .* it can be 0 or 1"):
        chatml.tokenize({"messages": [USER, {**ANSWER, "weight": value}]})


def test_weights_that_cannot_be_obeyed_are_refused(chatml: ChunkWorker) -> None:
    with pytest.raises(RecordError, match="contradict"):
        chatml.tokenize({"messages": [USER, {**ANSWER, "weight": 1, "train": False}]})
    with pytest.raises(RecordError, match=r"message 0 \(user\) marks itself for the loss"):
        chatml.tokenize({"messages": [{**USER, "train": True}, ANSWER]})
    with pytest.raises(RecordError, match="all 0"):
        chatml.tokenize({"messages": [USER, {**ANSWER, "weight": 0}]})


PREFERENCES = [
    {"prompt": "How high?", "chosen": "8,849 m", "rejected": "9 km"},
    {"prompt": "How high?", "chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "9 km"}]},
    {"prompt": [USER], "chosen": [ANSWER], "rejected": [ANSWER]},
    {"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]},
    {"chosen": '[{"role": "user", "content": "How high?"}, {"role": "assistant", "content": "8,849 m"}]'},
]


@pytest.mark.parametrize("record", PREFERENCES)
def test_preference_pairs_are_read_only_if_requested(make_tokenizer: MakeTokenizer, record: Any) -> None:
    tokenizer = make_tokenizer(templates.CHATML)
    with pytest.raises(RecordError, match="preference pair") as caught:
        worker(tokenizer).tokenize(record)
    assert "--chosen" in caught.value.remedy
    assert under_loss(worker(tokenizer, Reading(chosen=True)), record) == ["8,849 m<|im_end|>"]


def test_a_person_s_own_keys_are_read_and_no_others(make_tokenizer: MakeTokenizer) -> None:
    keys = (("answer", "reply"), ("prompt", "ask"), ("reasoning", "why"), ("system", "rules"))
    made = worker(make_tokenizer(templates.REASONING_KEY), Reading(keys=keys))
    record = {"ask": "How high?", "reply": "8,849 m", "why": THOUGHT, "messages": "not these"}
    assert under_loss(made, record) == SHOWN
    with pytest.raises(RecordError, match="it has no key 'reply', which --keys names"):
        made.tokenize({"ask": "How high?"})


def test_keys_that_the_template_does_not_read_are_counted_and_ignored_keys_are_not_read(
    make_tokenizer: MakeTokenizer,
) -> None:
    tokenizer = make_tokenizer(templates.CHATML)
    answer = {**ANSWER, "model": "m-1", "toxic": False, "score": 3, "timestamp": "2026", "logprobs": None}
    record = {"messages": [{**USER, "language": "English"}, answer]}
    made = worker(tokenizer)._read(record)
    assert made.unread == {  # type: ignore[union-attr]
        "user.language": 1,
        "assistant.model": 1,
        "assistant.score": 1,
        "assistant.timestamp": 1,
    }
    draft = {"messages": [USER, {**ANSWER, "draft": "about 9 km"}]}
    assert under_loss(worker(tokenizer, Reading(ignored=frozenset({"draft"}))), draft) == ["8,849 m<|im_end|>"]


def test_a_key_that_the_template_reads_is_used(make_tokenizer: MakeTokenizer) -> None:
    made = worker(make_tokenizer(templates.CHATML.replace("{{ m.content }}", "{{ m.plan }}{{ m.content }}")))
    assert under_loss(made, {"messages": [USER, {**ANSWER, "plan": "Look. "}]}) == ["Look. 8,849 m<|im_end|>"]
