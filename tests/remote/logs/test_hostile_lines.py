"""A log of any bytes, read in any steps: every line once, in order, and memory bounded."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.logs import lines as module
from remote.logs.backlog import backlog_start, logged_at
from remote.logs.lines import CHUNK_BYTES, MAX_LINE_BYTES, LineReader
from remote.logs.pattern import Pattern
from remote.shared.messages.logs import LOG_EVENT, LogLines, LogPosition, LogSource
from tests.hostile import examples

pieces = st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"\n", b"\r\n", b"\xff\n", b"\0", b"\x1b[2J\n"])))


@examples(75)
@given(written=pieces, chunk=st.integers(1, 40), longest=st.integers(1, 40))
def test_every_line_is_returned_once(
    tmp_path_factory: pytest.TempPathFactory, written: list[bytes], chunk: int, longest: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", chunk)
        patch.setattr(module, "MAX_LINE_BYTES", longest)
        reader = LineReader(path)
        found: list[str] = []
        for piece in written:
            with path.open("ab") as log:
                log.write(piece)
            while not reader.at_end:
                found += reader.read()
        reader.close()
    whole = b"".join(written).split(b"\n")[:-1]
    assert len(found) == len(whole)
    for shown, line in zip(found, whole, strict=True):
        kept = line[:longest].decode(errors="replace")
        assert shown == (kept if len(line) <= longest else f"{kept}… [{len(line) - longest} bytes left out]")
        source = LogSource()
        item = LogLines(
            source=source,
            file="log",
            lines=[shown],
            end=LogPosition(source=source, file="log", inode=1, head="", offset=1),
        )
        assert LOG_EVENT.validate_json(item.model_dump_json()) == item


def test_a_line_without_an_end_takes_no_more_memory_than_a_long_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        log.truncate(200 << 20)
    reader = LineReader(path)
    tracemalloc.start()
    try:
        while not reader.at_end:
            assert reader.read() == []
        assert tracemalloc.get_traced_memory()[1] < 4 * (CHUNK_BYTES + MAX_LINE_BYTES)
    finally:
        tracemalloc.stop()
        reader.close()


@examples(75)
@given(content=st.binary(max_size=120), count=st.integers(0, 5), since=st.one_of(st.none(), st.floats(-1e300, 1e300)))
def test_a_backlog_begins_at_a_line_s_first_byte(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, count: int, since: float | None
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(content)
    for pattern in (None, Pattern("a")):
        offset = backlog_start([path], count, pattern, since).offset
        assert 0 <= offset <= os.path.getsize(path)
        assert offset in (0, len(content)) or content[offset - 1 : offset] == b"\n"


@examples(75)
@given(
    st.one_of(
        st.binary(max_size=40),
        st.from_regex(rb"\A\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:?\d\d)?", fullmatch=True),
    )
)
def test_a_time_of_any_digits_is_a_time_or_none(line: bytes) -> None:
    assert isinstance(logged_at(line), float | None)
