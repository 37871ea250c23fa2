"""Masks of real models' chat templates: from each turn's first token to its last token."""

# ruff: noqa: RUF001, E501

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from remote.data import rendering
from remote.data.carried import load_carried
from remote.data.chunk import ChunkWorker, Recipe
from remote.data.tokenizer import TokenizerSpec
from remote.shared.errors import RecordError
from tests.remote.data.samples import MakeTokenizer

FOLDER = Path(__file__).parent / "chat_templates"
DEEPSEEK = [
    *("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    *(
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁output▁begin｜>",
        "<｜tool▁output▁end｜>",
    ),
    *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
]
KIMI = [
    *("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|tool_calls_section_begin|>"),
    *("<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
]
SPECIALS = {
    "qwen3": [],
    "deepseek-v3.1": DEEPSEEK,
    "deepseek-r1": DEEPSEEK,
    "kimi-k2.5": KIMI,
    "glm-4.6": ["[gMASK]", "<sop>", "<|observation|>"],
    "gpt-oss": ["<|start|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"],
    "minimax-m2": ["]~!b[", "]~b]", "[e~["],
    "mistral-nemo": ["[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]"],
    "llama-3.1": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "gemma-2": ["<start_of_turn>", "<end_of_turn>"],
}
EOS = "<｜end▁of▁sentence｜>"
ID = {"mistral-nemo": "a1b2c3d4e"}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def calling(call_id: str, **more: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    return answer("", tool_calls=[call], **more)


PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "d", "parameters": PARAMETERS}}]


def record(kind: str, model: str) -> dict[str, Any]:
    call_id = ID.get(model, "functions.add:0")
    result = {"role": "tool", "tool_call_id": call_id, "name": "add", "content": "2"}
    messages: dict[str, list[Any]] = {
        "turns": [user("Hi"), answer("Hello!"), user("And?"), answer("More.")],
        "system": [{"role": "system", "content": "Be brief."}, user("Hi"), answer("Hello!")],
        "thinking": [user("Hi"), answer("Hello!", reasoning="greet"), user("And?"), answer("More.", reasoning="count")],
        "tools": [user("1+1?"), calling(call_id), result, answer("Two.")],
        "a call last": [user("1+1?"), calling(call_id)],
        "a thought call": [user("1+1?"), calling(call_id, reasoning="plan"), result, answer("Two.", reasoning="sum")],
    }
    return {"messages": messages[kind], **({"tools": TOOLS} if "call" in kind or kind == "tools" else {})}


CALL = {
    "qwen3": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>',
    "deepseek-v3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>"
    f'{{"a": 1}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>{EOS}',
    "deepseek-r1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
    f'{{"a": 1}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>{EOS}',
    "kimi-k2.5": "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"a": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>',
    "glm-4.6": "\n<think></think>\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "gpt-oss": ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>',
    "minimax-m2": '\n<minimax:tool_call>\n<invoke name="add">\n<parameter name="a">1</parameter>\n</invoke>\n'
    "</minimax:tool_call>[e~[",
    "mistral-nemo": '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "a1b2c3d4e"}]</s>',
    "llama-3.1": '{"name": "add", "parameters": {"a": 1}}<|eot_id|>',
}
FINAL = {  # how a plain answer ends the conversation; {} is what it says
    "qwen3": "<think>\n\n</think>\n\n{}<|im_end|>",
    "deepseek-v3.1": f"{{}}{EOS}",
    "deepseek-r1": f"{{}}{EOS}",
    "kimi-k2.5": "</think>{}<|im_end|>",
    "glm-4.6": "\n<think></think>\n{}",
    "gpt-oss": "<|channel|>final<|message|>{}<|return|>",
    "minimax-m2": "{}[e~[",
    "mistral-nemo": "{}</s>",
    "llama-3.1": "{}<|eot_id|>",
    "gemma-2": "{}<end_of_turn>",
}
EARLIER = {**FINAL, "qwen3": "{}<|im_end|>", "gpt-oss": "<|channel|>final<|message|>{}<|end|>"}
THOUGHT = {
    "qwen3": "<think>\ncount\n</think>\n\nMore.<|im_end|>",
    "kimi-k2.5": "count</think>More.<|im_end|>",
    "glm-4.6": "\n<think>count</think>\nMore.",
    "gpt-oss": "<|channel|>analysis<|message|>count<|end|><|start|>assistant<|channel|>final<|message|>More.<|return|>",
    "minimax-m2": "count\n</think>\n\nMore.[e~[",
}
THOUGHT_CALL = {
    "qwen3": [f"<think>\nplan\n</think>\n\n{CALL['qwen3']}", "<think>\nsum\n</think>\n\nTwo.<|im_end|>"],
    "kimi-k2.5": [f"plan{CALL['kimi-k2.5']}", "sum</think>Two.<|im_end|>"],
    "glm-4.6": [CALL["glm-4.6"].replace("<think>", "<think>plan"), "\n<think>sum</think>\nTwo."],
    "minimax-m2": [f"plan\n</think>\n\n{CALL['minimax-m2']}", "sum\n</think>\n\nTwo.[e~["],
}
LAST_CALL = {**CALL, "qwen3": f"<think>\n\n</think>\n\n{CALL['qwen3']}"}

MASKS = [
    *((model, "turns", [EARLIER[model].format("Hello!"), FINAL[model].format("More.")]) for model in SPECIALS),
    *((model, "system", [FINAL[model].format("Hello!")]) for model in SPECIALS if model != "gemma-2"),
    *((model, "thinking", [EARLIER[model].format("Hello!"), THOUGHT[model]]) for model in THOUGHT),
    *((model, "tools", [CALL[model], FINAL[model].format("Two.")]) for model in CALL),
    *((model, "a call last", [LAST_CALL[model]]) for model in CALL),
    *((model, "a thought call", THOUGHT_CALL[model]) for model in THOUGHT_CALL),
]
REFUSED = [
    ("gemma-2", "system", "There is no system role"),
    *(
        (model, "thinking", "has reasoning, but the chat template reads it from no key")
        for model in SPECIALS
        if model not in THOUGHT
    ),
    ("gemma-2", "tools", "has tool calls, which the chat template does not read"),
    ("gpt-oss", "a thought call", "does not show the reasoning of message 1"),
]


def worker(model: str, make_tokenizer: MakeTokenizer, ends: list[int] | None = None) -> ChunkWorker:
    folder = make_tokenizer((FOLDER / f"{model}.jinja").read_text(), specials=SPECIALS[model])
    if ends is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    spec = TokenizerSpec(str(folder))
    return ChunkWorker(Recipe(spec, (), "2026-01-31" if model == "gpt-oss" else "", None, False, 1, 10_000))


def runs_of(made: ChunkWorker, raw: Any) -> list[str]:
    ids, mask, _ = made.tokenize(raw)
    runs: list[list[int]] = []
    for place, token in enumerate(ids.tolist()):
        if mask[place]:
            if place == 0 or not mask[place - 1]:
                runs.append([])
            runs[-1].append(token)
    return [made.tokenizer.decode(run) for run in runs]


@pytest.mark.parametrize(("model", "kind", "runs"), MASKS, ids=[f"{model} {kind}" for model, kind, _ in MASKS])
def test_each_turn_is_under_the_loss_from_its_first_token_to_its_last(
    make_tokenizer: MakeTokenizer, model: str, kind: str, runs: list[str]
) -> None:
    assert runs_of(worker(model, make_tokenizer), record(kind, model)) == runs


@pytest.mark.parametrize(("model", "kind", "said"), REFUSED, ids=[f"{model} {kind}" for model, kind, _ in REFUSED])
def test_content_that_a_template_cannot_show_is_refused(
    make_tokenizer: MakeTokenizer, model: str, kind: str, said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        runs_of(worker(model, make_tokenizer), record(kind, model))


def test_a_turn_without_an_end_token_ends_at_the_next_roles_token(make_tokenizer: MakeTokenizer) -> None:
    """GLM closes no turn: the tokens of the next roles are in its generation config as ends."""
    made = worker("glm-4.6", make_tokenizer)
    ends = [made.tokenizer.hf.convert_tokens_to_ids(token) for token in ("<|user|>", "<|observation|>")]
    made = worker("glm-4.6", make_tokenizer, ends)
    assert runs_of(made, record("turns", "glm-4.6")) == [
        "\n<think></think>\nHello!<|user|>",
        "\n<think></think>\nMore.",
    ]
    assert runs_of(made, record("tools", "glm-4.6"))[0] == CALL["glm-4.6"] + "<|observation|>"


@pytest.mark.parametrize("model", SPECIALS)
def test_texts_are_those_of_transformers_and_workers_get_the_same_without_it(
    make_tokenizer: MakeTokenizer, tmp_path: Path, model: str
) -> None:
    made = worker(model, make_tokenizer)
    alone, told = load_carried(TokenizerSpec(made.tokenizer.path), tmp_path / "carried.json", proved=True)
    assert told.carried
    assert alone.hf is None
    assert (alone.digest, alone.vocab_size) == (made.tokenizer.digest, made.tokenizer.vocab_size)
    for kind in ("turns", "tools"):
        raw = record(kind, model)
        tools, messages = raw.get("tools"), raw["messages"]
        if (kind == "tools" and model in ("gemma-2", "deepseek-r1")) or model == "gpt-oss":
            continue  # no tools, arguments as text; today's date
        for prompt in (False, True):
            theirs = made.tokenizer.hf.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=prompt
            )
            assert made.template.render(messages, tools, prompt=prompt) == theirs
        ids = made.tokenizer.hf(theirs, add_special_tokens=False)["input_ids"]
        assert alone.encode([theirs], [[]])[0][0].tolist() == ids


RUNAWAY = {
    "loops": "{% for a in range(90000) %}{% for b in range(90000) %}{{ '' }}{% endfor %}{% endfor %}",
    "grows": "{% set n = namespace(x='x' * 1000) %}{% for a in range(90) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "multiplies": "{{ 'x' * 99999999999 }}",
    "recurses": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
}


@pytest.mark.parametrize("template", RUNAWAY.values(), ids=RUNAWAY.keys())
def test_a_template_that_runs_away_ends_with_a_sentence(
    make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(rendering, "DEADLINE_SECONDS", 0.5)
    monkeypatch.setattr(rendering, "MEMORY_BYTES", 256 << 20)
    rendering._allowed.cache_clear()
    folder = make_tokenizer(template)
    made = ChunkWorker(Recipe(TokenizerSpec(str(folder)), (), "", None, False, 1, 10_000))
    try:
        with pytest.raises(
            RecordError, match=r"did not finish rendering it within 0\.5 seconds|GiB of memory|refuses it: max"
        ):
            made.tokenize(record("turns", "qwen3"))
    finally:
        rendering._allowed.cache_clear()


@pytest.fixture
def kimi(tmp_path: Path) -> Path:
    """A model folder as Kimi's: tiktoken ranks, code of its own, special tokens beside them."""
    import base64

    folder = tmp_path / "kimi"
    folder.mkdir()
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += [b"He", b"ll", b"Hell", b" w", b".\n", b"\n\n", "早".encode(), "早上".encode(), b"!<", b"think", b">H"]
    ranks = "".join(f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(pieces))
    (folder / "tiktoken.model").write_text(ranks)
    shutil.copyfile(FOLDER / "tokenization_kimi.txt", folder / "tokenization_kimi.py")
    names = ["[BOS]", "[EOS]", "<|im_end|>", *KIMI]
    added = {str(300 + at): {"content": name, "special": True} for at, name in enumerate(names)}
    config = {
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "tokenizer_class": "TikTokenTokenizer",
        "added_tokens_decoder": added,
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "chat_template": (FOLDER / "kimi-k2.5.jinja").read_text(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_kimi_s_tiktoken_is_masked_to_the_byte(kimi: Path, tmp_path: Path) -> None:
    spec = TokenizerSpec(str(kimi), trust_remote_code=True)
    made = ChunkWorker(Recipe(spec, (), "", None, False, 1, 10_000))
    assert not made.tokenizer.hf.is_fast
    assert made.tokenizer.renders_itself
    assert load_carried(spec, tmp_path / "carried.json", proved=True)[1] == spec
    assert runs_of(made, record("turns", "kimi-k2.5")) == ["</think>Hello!<|im_end|>", "</think>More.<|im_end|>"]
    many = {"messages": [user("naïve 早 😀?"), answer("早上好 😀 Hello w.\n\n"), user("?"), answer("é")]}
    assert runs_of(made, many) == ["</think>早上好 😀 Hello w.\n\n<|im_end|>", "</think>é<|im_end|>"]
    assert runs_of(made, record("tools", "kimi-k2.5"))[0] == CALL["kimi-k2.5"]
    # "!<" is one token: what straddles the edge of a turn counts as inside, and span by span it would be two
    ids, mask = made.tokenizer.encode(["x!<think>Hello"], [[(2, 14)]])[0]
    assert made.tokenizer.decode(ids[mask == 1].tolist()) == "!<think>Hello"


def test_every_template_kept_as_data_has_its_source_and_its_licence_named() -> None:
    lines = (FOLDER / "README.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    assert all(len(row) == 3 and all(row) for row in rows), rows
    files = {path.name for path in FOLDER.iterdir() if path.is_file()} - {"README.md"}
    assert {row[0].strip("`") for row in rows} == files
