"""A dataset's folder of unknown origin: its manifest and lengths are understood, or refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.errors import UsageError
from hosts.plan.lengths import read_lengths, read_manifest
from remote.shared.messages.dataset import Manifest
from tests.hostile import Maker, examples, json_values, objects_like, values_of


def written(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder


contents = st.one_of(
    st.binary(max_size=60),
    st.just(b"[" * 100_000),
    json_values().map(lambda value: json.dumps(value).encode()),
    objects_like(Manifest).map(lambda value: json.dumps(value).encode()),
)


@examples(100)
@given(contents)
def test_a_manifest_of_any_content_is_understood_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = written(tmp_path_factory.mktemp("dataset"), "manifest.json", content)
    try:
        found = read_manifest(folder)
    except UsageError:
        return
    assert Manifest.model_validate(found.model_dump()) == found


HEADER = "{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
headers = st.one_of(
    st.text(max_size=40),
    st.builds(
        lambda descr, order, shape: HEADER.format(descr=descr, order=order, shape=shape),
        st.sampled_from(["'<i4'", "'<i8'", "'|O'", "None", "'<i4' * 10**9"]),
        st.sampled_from(["False", "True", "0"]),
        st.sampled_from(["(2,)", "(2, 2)", "()", "2", "(-1,)", "(10**30,)", "None", "(" * 500]),
    ),
)


@examples(100)
@given(headers, st.binary(max_size=20), st.integers(0, 2))
def test_lengths_of_any_content_fit_their_manifest_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, header: str, numbers: bytes, version: int
) -> None:
    text = header.encode("latin-1", "replace")
    content = b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2, "little") + text + numbers
    folder = written(tmp_path_factory.mktemp("dataset"), "lengths.npy", content)
    manifest = Maker(0).valid(Manifest).model_copy(update={"records": 2, "tokens": 7})
    try:
        lengths = read_lengths(folder, manifest)
    except UsageError:
        return
    assert (len(lengths), sum(lengths)) == (2, 7)


@examples(40)
@given(values_of(Manifest))
def test_a_manifest_of_extreme_values_never_fits_lengths_that_are_not_its_own(
    tmp_path_factory: pytest.TempPathFactory, manifest: Manifest
) -> None:
    header = HEADER.format(descr="'<i4'", order=False, shape="(0,)").encode()
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    folder = written(tmp_path_factory.mktemp("dataset"), "lengths.npy", content)
    if (manifest.records, manifest.tokens) != (0, 0):
        with pytest.raises(UsageError):
            read_lengths(folder, manifest)
