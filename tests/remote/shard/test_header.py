"""Headers of safetensors files: headers of the `safetensors` package are read, and impossible headers are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from remote.shared.shard import header
from remote.shared.shard.header import HeaderError, TensorSpec
from tests.hostile import Maker, examples, seeds

GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
REST = {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]}


def content(entries: Any, data: int = 32) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


def parsed(entries: Any, data: int = 32) -> header.Header:
    whole = content(entries, data)
    return header.parse(whole, len(whole))


def test_headers_are_compatible_with_the_safetensors_package() -> None:
    arrays: dict[str, np.ndarray] = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.zeros(0, np.int64),
        "c": np.ones((), np.uint8),
    }
    whole = save(arrays, {"x": "y"})
    found = header.parse(whole, len(whole))
    assert found.metadata == {"x": "y"}
    assert {name: span.shape for name, span in found.tensors.items()} == {"a": (0,), "b": (2, 3), "c": ()}
    assert whole[found.tensors["b"].begin : found.tensors["b"].end] == arrays["b"].tobytes()
    written = header.write([TensorSpec("b", "F32", (2, 3))], {"x": "y"}) + arrays["b"].tobytes()
    np.testing.assert_array_equal(load(written)["b"], arrays["b"])


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"a": {**GOOD, "data_offsets": [0.0, 24.0]}, "b": REST}, "no possible data_offsets"),
        ({"a": {**GOOD, "data_offsets": [0, 24, 32]}, "b": REST}, "no possible data_offsets"),
        ({"a": {**GOOD, "data_offsets": [24, 0]}, "b": REST}, "no possible data_offsets"),
        ({"a": {**GOOD, "data_offsets": [-8, 16]}, "b": REST}, "no possible data_offsets"),
        ({"a": {**GOOD, "shape": [2.0, 3]}, "b": REST}, "no possible shape"),
        ({"a": {**GOOD, "shape": [True, 6]}, "b": REST}, "no possible shape"),
        ({"a": {**GOOD, "shape": [1] * 70 + [2, 3]}, "b": REST}, "no possible shape"),
        ({"a": {**GOOD, "shape": [0, 10**30], "data_offsets": [0, 0]}}, "no possible shape"),
        ({"a": {**GOOD, "shape": [2, 2]}, "b": REST}, "has 24 bytes for its tensor 'a'"),
        ({"a": {**GOOD, "dtype": ["F32"]}, "b": REST}, "a dtype that is not a text"),
        ({"a": {"dtype": "F32", "shape": [2, 3]}, "b": REST}, "by dtype, shape and data_offsets"),
        ({"a": "F32", "b": REST}, "by dtype, shape and data_offsets"),
        ({"a": GOOD, "b": {**REST, "data_offsets": [16, 24]}}, "overlaps the tensor before it"),
        ({"a": GOOD, "b": {**REST, "data_offsets": [32, 40]}}, "does not follow the tensor before it"),
        ({"a": GOOD}, r"has \d+ bytes, but its header says"),
        ({"__metadata__": {"rows": 3}, "a": GOOD, "b": REST}, "metadata that is not text"),
        ([GOOD], "not a JSON object"),
        (b"{" + b'"a":' * 3, "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ('{"a": 1}'.encode("utf-16"), "not JSON"),
        (b'{"a": {"dtype": "U8", "dtype": "I8", "shape": [32], "data_offsets": [0, 32]}}', "names something twice"),
    ],
)
def test_a_header_that_no_file_can_have_is_refused_with_what_is_wrong(entries: Any, says: str) -> None:
    with pytest.raises(HeaderError, match=says):
        parsed(entries)


def test_a_dtype_that_is_not_known_is_kept_as_it_is() -> None:
    assert parsed({"a": {"dtype": "F4", "shape": [64], "data_offsets": [0, 32]}}).tensors["a"].dtype == "F4"


@pytest.mark.parametrize(("length", "says"), [(1, "header of 1 bytes"), (1 << 21, "are possible"), (5000, "cut short")])
def test_a_header_s_length_is_bounded_before_anything_is_read(length: int, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(length.to_bytes(8, "little") + b"{}" * 100)
    with header.open_regular(path) as file, pytest.raises(HeaderError, match=says):
        header.read(file)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HeaderError, match="not a regular file"):
        header.open_regular(tmp_path / "pipe")


@examples(200)
@given(seeds, st.integers(0, 3))
def test_any_value_in_a_header_is_read_or_refused(seed: int, changes: int) -> None:
    maker = Maker(seed)
    entries: dict[str, Any] = {"__metadata__": {"x": "y"}, "a": dict(GOOD), "b": dict(REST)}
    for _ in range(changes):
        part = maker.random.choice(list(entries.values()))
        part[maker.random.choice(list(part))] = maker.anything()
    try:
        found = parsed(entries)
    except HeaderError:
        return
    assert all(8 < span.begin <= span.end <= found.size for span in found.tensors.values())
