"""Cuts the input files of `prepare` into chunks for the workers, and reads a chunk as raw records.

Called by `remote.data.prepare` (`scan`) and in its worker processes (`read`). Writes only the spool folder, which gets
the sources that cannot be read in parts, in a form that can (`remote.data.divisible`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.data.answered import identity_at, lines_of
from remote.data.divisible import array_to_lines, parquet_to_arrow
from remote.data.inputs import InputFile, Plain, make_plain
from remote.data.records import LeftOutError
from remote.data.values import check, parse, without_nulls
from remote.shared.errors import RecordError, UsageError
from remote.shared.messages.dataset import Source, SourceForm

CHUNK_BYTES = 1 << 20
"""Bytes of source text in a chunk, some hundred records. Small chunks keep all cores busy, and a kill costs little."""
_BOM = b"\xef\xbb\xbf"
_ROWS = 256
"""Rows of a column file that become objects at once."""
_GROUP_BYTES = 4 * CHUNK_BYTES
_GROUP_ROWS = 16 * _ROWS
"""The largest Parquet row group that one worker reads. pandas and pyarrow write a million rows to a group."""


@dataclass(frozen=True)
class Chunk:
    """A part of one source that a worker turns into records."""

    source: int
    """Number of the source in the request's order."""
    name: str
    """The source's file name, for messages."""
    path: str
    """The file to read: the source, or its lines in the spool."""
    form: SourceForm
    start: int
    stop: int
    """Half-open range: bytes of a text, row groups of a Parquet file, rows of an Arrow file."""
    first: int
    """Number of the chunk's first record, counted from 1; of a text, the number of the line."""
    size_bytes: int


def scan(number: int, file: InputFile, spool: Path) -> tuple[Source, list[Chunk]]:
    """Return the digest of one source and its chunks. Its records are counted later, when they are read."""
    if file.form == "answers":
        return _scan_answers(number, file, spool)
    plain = make_plain(file, spool)
    if plain.path.stat().st_size == 0:
        raise UsageError(f"The input {file.shown} is empty.")
    source = Source(path=file.shown, form=file.form, xxh3=plain.xxh3, size_bytes=plain.size_bytes, records=0)
    if file.form == "parquet":
        return source, _cut_parquet(number, file, plain, spool)
    if file.form == "arrow":
        return source, _cut_arrow(number, file, plain.path)
    head = _head(plain.path)
    _refuse_other_encodings(file, head)
    lines = plain.path
    if file.form == "json" and head.lstrip(_BOM + b" \t\r\n").startswith(b"["):
        lines = spool / f"lines-{plain.xxh3}.jsonl"
        array_to_lines(file, plain.path, lines)
    return source, _cut_lines(number, file.name, lines, "text" if file.form == "text" else "jsonl")


def _scan_answers(number: int, file: InputFile, spool: Path) -> tuple[Source, list[Chunk]]:
    folder = Path(file.path)
    identity = identity_at(folder)
    assert identity is not None
    lines = spool / f"answers-{identity.digest}.jsonl"
    xxh3, size = lines_of(folder, identity, lines)
    if not size:
        raise UsageError(f"No answers have been pulled to {folder} yet.", remedy="Pull them with inv pull.")
    source = Source(path=file.shown, form="answers", xxh3=xxh3, size_bytes=size, records=0)
    return source, _cut_lines(number, file.name, lines, "answers")


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(4096)


def _refuse_other_encodings(file: InputFile, head: bytes) -> None:
    """Raise UsageError for UTF-16, as Windows saves "Unicode": such text begins with a mark, or has NUL bytes."""
    marks = {b"\xff\xfe\x00\x00": "UTF-32", b"\x00\x00\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
    encoding = next((name for mark, name in marks.items() if head.startswith(mark)), "")
    if not encoding and b"\x00" in head[:64]:
        encoding = "UTF-16" if head[:4].count(0) < 3 else "UTF-32"
    if encoding:
        raise UsageError(
            f"The input {file.shown} is {encoding} text, but JSON is read as UTF-8.",
            remedy=f"Convert it: iconv -f {encoding} -t UTF-8 {file.name} > utf8-{file.name}",
        )


def _cut_lines(number: int, name: str, path: Path, form: SourceForm) -> list[Chunk]:
    """Cut a text at line ends, block by block, without reading the lines themselves."""
    chunks: list[Chunk] = []
    start, first = 0, 1
    with path.open("rb") as stream:
        while True:
            stream.seek(start)
            block = stream.read(CHUNK_BYTES)
            if len(block) == CHUNK_BYTES:
                block += stream.readline()
            if not block:
                return chunks
            stop = start + len(block)
            chunks.append(Chunk(number, name, str(path), form, start, stop, first, len(block)))
            start, first = stop, first + block.count(b"\n")


def _cut_parquet(number: int, file: InputFile, plain: Plain, spool: Path) -> list[Chunk]:
    import pyarrow.parquet

    try:
        meta = pyarrow.parquet.read_metadata(plain.path)
    except (OSError, ValueError) as error:
        raise UsageError(f"The input {file.shown} is not a Parquet file: {error}.") from error
    groups = [meta.row_group(place) for place in range(meta.num_row_groups)]
    if any(group.total_byte_size > _GROUP_BYTES or group.num_rows > _GROUP_ROWS for group in groups):
        rows = spool / f"rows-{plain.xxh3}.arrow"
        parquet_to_arrow(file, plain.path, rows)
        return _cut_arrow(number, file, rows)
    chunks, first = [], 1
    for place, group in enumerate(groups):
        chunks.append(
            Chunk(number, file.name, str(plain.path), "parquet", place, place + 1, first, group.total_byte_size)
        )
        first += group.num_rows
    return chunks


def _cut_arrow(number: int, file: InputFile, path: Path) -> list[Chunk]:
    import pyarrow

    chunks: list[Chunk] = []
    start = row = 0
    size = 0.0
    try:
        for batch in _arrow_batches(path):
            row_bytes = batch.nbytes / max(1, batch.num_rows)
            step = math.ceil(CHUNK_BYTES / max(1.0, row_bytes))
            for first in range(0, batch.num_rows, step):
                count = min(step, batch.num_rows - first)
                row, size = row + count, size + row_bytes * count
                if size >= CHUNK_BYTES:
                    chunks.append(Chunk(number, file.name, str(path), "arrow", start, row, start + 1, round(size)))
                    start, size = row, 0.0
    except pyarrow.ArrowInvalid as error:
        raise UsageError(f"The input {file.shown} is not an Arrow file: {error}.") from error
    if row > start:
        chunks.append(Chunk(number, file.name, str(path), "arrow", start, row, start + 1, round(size)))
    return chunks


def _arrow_batches(path: Path) -> Iterator[Any]:
    """Return the record batches of an Arrow stream (as `datasets` writes it) or file, memory-mapped."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as mapped:
        if mapped.read(6) == b"ARROW1":
            reader = pyarrow.ipc.open_file(mapped)
            yield from (reader.get_batch(place) for place in range(reader.num_record_batches))
        else:
            mapped.seek(0)
            yield from pyarrow.ipc.open_stream(mapped)


def read(chunk: Chunk) -> Iterator[tuple[int, Any]]:
    """Yield (number, raw record) of a chunk; for an unreadable record, its RecordError instead."""
    if chunk.form == "jsonl":
        yield from ((number, parse_line(line)) for number, line in _lines(chunk))
    elif chunk.form == "answers":
        yield from ((number, _answer(parse_line(line))) for number, line in _lines(chunk))
    elif chunk.form == "text":
        yield from ((number, _prompt(line)) for number, line in _lines(chunk))
    else:
        yield from enumerate(_read_rows(chunk), start=chunk.first)


def _lines(chunk: Chunk) -> Iterator[tuple[int, bytes]]:
    with Path(chunk.path).open("rb") as stream:
        stream.seek(chunk.start)
        content = stream.read(chunk.stop - chunk.start)
    if chunk.start == 0:
        content = content.removeprefix(_BOM)
    for number, line in enumerate(content.split(b"\n"), start=chunk.first):
        if line and not line.isspace():
            yield number, line


def _prompt(line: bytes) -> Any:
    """Return the prompt in a line of a text file, or the RecordError that says why the line is no prompt."""
    try:
        return {"prompt": line.decode().rstrip("\r")}
    except UnicodeDecodeError as error:
        return RecordError(f"it is not UTF-8: {error.reason}")


def _answer(value: Any) -> Any:
    """Return the record in a line of `remote.data.answered`, or the RecordError that says why it is left out."""
    return LeftOutError(value["left_out"]) if isinstance(value, dict) and "left_out" in value else value


def parse_line(line: bytes) -> Any:
    """Return the value of one line, or the RecordError that says why the line has no value."""
    try:
        return parse(line)
    except ValueError as error:
        return RecordError(str(error))


def _read_rows(chunk: Chunk) -> Iterator[Any]:
    for batch in _row_batches(chunk):
        try:
            yield from map(_row, batch.to_pylist())
        except UnicodeDecodeError:
            for row in range(batch.num_rows):
                try:
                    value = batch.slice(row, 1).to_pylist()[0]
                except UnicodeDecodeError as error:
                    value = RecordError(f"it holds text that is not UTF-8: {error.reason}")
                yield value if isinstance(value, RecordError) else _row(value)


def _row_batches(chunk: Chunk) -> Iterator[Any]:
    if chunk.form == "parquet":
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(chunk.path) as file:
            yield from file.iter_batches(batch_size=_ROWS, row_groups=list(range(chunk.start, chunk.stop)))
        return
    end = 0
    for batch in _arrow_batches(Path(chunk.path)):
        begin, end = end, end + batch.num_rows
        stop = min(chunk.stop, end)
        for start in range(max(chunk.start, begin), stop, _ROWS):
            yield batch.slice(start - begin, min(_ROWS, stop - start))
        if end >= chunk.stop:
            return


def _row(value: Any) -> Any:
    try:
        check(value)
    except ValueError as error:
        return RecordError(str(error))
    return without_nulls(value)
