"""Sources and shards of any content: a record's error with its reason, or a right reading, and nothing else."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.data.records import Conversation, Tokens, normalize
from remote.data.shardcheck import check_shard
from remote.data.sources import parse_line
from remote.shared.errors import RecordError
from remote.shared.messages.extract import ShardRow
from remote.shared.shard import header
from remote.shared.shard.header import TensorSpec
from remote.shared.shard.tensorfile import TensorFile
from tests.hostile import Maker, examples, json_values, seeds
from tests.identities import run_identity

KEYS = ("messages", "conversations", "tools", "system", "prompt", "response", "instruction", "input", "output")
TURN_KEYS = ("role", "from", "content", "value", "text", "tool_calls", "name")
IDENTITY = run_identity(boundaries=(1, 2), hidden_size=4)


def record_like(seed: int) -> dict[str, Any]:
    """An object that could almost be a record."""
    maker = Maker(seed)
    choice = maker.random
    turns: list[Any] = [
        {
            key: choice.choice(["user", "assistant", "function_call", maker.anything()])
            for key in choice.sample(TURN_KEYS, choice.randrange(5))
        }
        for _ in range(choice.randrange(4))
    ]
    record = {key: choice.choice([turns, maker.anything(), json.dumps(turns)]) for key in choice.sample(KEYS, 2)}
    for key in ("input_ids", "loss_mask") if choice.random() < 0.3 else ():
        record[key] = choice.choice([[0, 1, 1], [1, 2], [[0]], [True, False, True], maker.anything()])
    return record


@examples(200)
@given(st.one_of(json_values(), seeds.map(record_like)))
def test_a_record_of_any_shape_is_understood_or_refused_with_its_reason(raw: Any) -> None:
    try:
        found = normalize(raw)
    except RecordError:
        return
    if isinstance(found, Tokens):
        assert len(found.input_ids) == len(found.loss_mask)
        assert set(found.loss_mask) <= {0, 1}
    else:
        assert isinstance(found, Conversation)
        assert all(isinstance(message["content"], str) for message in found.messages)


@pytest.mark.parametrize("key", ["tools", "messages", "conversations"])
def test_text_that_is_nested_too_deeply_is_refused(key: str) -> None:
    record = {"conversations": [], key: "[" * 100_000}
    with pytest.raises(RecordError, match="cannot be read: it is not JSON"):
        normalize(record)


@examples(75)
@given(st.one_of(st.binary(max_size=60), st.just(b"[" * 10_000), st.just(b"9" * 5000), st.just(b'"\\ud800"')))
def test_a_line_of_any_bytes_is_parsed_or_a_record_s_error(line: bytes) -> None:
    found = parse_line(line)
    assert found is None or isinstance(found, dict | list | str | int | float | RecordError)


tensors = st.fixed_dictionaries(
    {
        "dtype": st.one_of(st.sampled_from(["BF16", "I64", "X"]), json_values()),
        "shape": st.one_of(st.just([3, 2, 4]), st.lists(st.integers(-3, 1 << 40), max_size=4), json_values()),
        "data_offsets": st.one_of(
            st.just([0, 48]), st.lists(st.integers(-100, 100), min_size=2, max_size=2), json_values()
        ),
    }
)
headers = st.one_of(
    st.binary(max_size=60),
    json_values().map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(["hidden_states", "token_ids", "__metadata__"]), tensors).map(
        lambda value: json.dumps(value).encode()
    ),
    st.just(b"[" * 10_000),
)


@examples(150)
@given(headers, st.binary(max_size=80))
def test_a_shard_of_any_content_is_a_fault_and_no_crash(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("shards") / "hs_0.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    row = ShardRow(index=0, rows=3, size_bytes=path.stat().st_size, xxh3="0" * 32, epoch=1)
    assert check_shard(path, row, IDENTITY, np.arange(3), every_byte=True).faults


@examples(100)
@given(st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_in_a_header_never_reaches_outside_the_file(place: int, value: int) -> None:
    specs = [TensorSpec("token_ids", "I64", (3,)), TensorSpec("hidden_states", "BF16", (3, 2, 4))]
    content = bytearray(header.write(specs) + bytes(sum(spec.size_bytes for spec in specs)))
    content[place % len(content)] = value
    try:
        file = TensorFile.parse(content)
        for name in file.header.tensors:
            assert file.array(name).nbytes <= len(content)
    except RecordError:
        return


def test_an_empty_shard_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "hs_0.safetensors"
    path.write_bytes(b"")
    row = ShardRow(index=0, rows=3, size_bytes=0, xxh3="0" * 32, epoch=1)
    assert check_shard(path, row, IDENTITY, np.arange(3), every_byte=True).faults
