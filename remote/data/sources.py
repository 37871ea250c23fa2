"""Input files of `prepare`: what they are, their digests, and how they are cut into chunks for the workers.

Called by `remote.data.prepare`; reads the sources, and writes only the spool folder that it is given (a JSON
array is first turned into lines there, so that it can be read in parts).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import orjson
import xxhash

from remote.shared.errors import RecordError, UsageError
from remote.shared.files import written_aside
from remote.shared.messages.dataset import Source, SourceForm

CHUNK_BYTES = 1 << 20
"""Of source text a chunk: some hundred records; keeps all cores busy on small inputs, and bounds what a kill costs."""
_BLOCK = 4 << 20
_FORMS: dict[str, SourceForm] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}


@dataclass(frozen=True)
class Chunk:
    """A part of one source that a worker turns into records."""

    source: int
    """Number of the source in the request's order."""
    name: str
    """The source's file name, for messages."""
    path: str
    """What is read: the source, or its lines in the spool."""
    form: SourceForm
    start: int
    stop: int
    """Half open: bytes of a text, row groups of a Parquet file, record batches of an Arrow one."""
    first: int
    """Number of the first record, counted from 1 (of a text: the line)."""
    size_bytes: int


def expand(inputs: list[str]) -> list[Path]:
    """Return the files that `inputs` name, folders replaced by the files in them; raise UsageError."""
    files: list[Path] = []
    for text in inputs:
        path = Path(text).expanduser()
        if path.is_dir():
            inside = sorted(item for item in path.iterdir() if item.suffix in _FORMS and item.is_file())
            if not inside:
                raise UsageError(f"The input folder {path} has no {', '.join(_FORMS)} file.")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise UsageError(f"There is no input {path}.")
    if not files:
        raise UsageError("No input was given.", remedy="Name files or folders with --input.")
    for file in files:
        if file.suffix not in _FORMS:
            raise UsageError(f"The input {file} is none of {', '.join(_FORMS)}.")
        if file.stat().st_size == 0:
            raise UsageError(f"The input {file} is empty.")
    return files


def scan(number: int, path: Path, spool: Path) -> tuple[Source, list[Chunk]]:
    """Digest one source and cut it into chunks; one pass over the file."""
    form = _FORMS[path.suffix]
    if form == "parquet":
        return _scan_parquet(number, path)
    if form == "arrow":
        return _scan_arrow(number, path)
    return _scan_text(number, path, form, spool)


def _scan_text(number: int, path: Path, form: SourceForm, spool: Path) -> tuple[Source, list[Chunk]]:
    if form == "json" and _begins_with_bracket(path):
        digest = file_digest(path)
        lines = spool / f"source-{digest}.jsonl"
        _array_to_lines(path, lines)
        _, chunks, records = _cut_lines(number, path.name, lines)
    else:
        digest, chunks, records = _cut_lines(number, path.name, path)
    size = path.stat().st_size
    return Source(path=str(path), form=form, xxh3=digest, size_bytes=size, records=records), chunks


def _begins_with_bracket(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _cut_lines(number: int, name: str, path: Path) -> tuple[str, list[Chunk], int]:
    """Return the digest of `path`, its chunks (cut at line ends) and its count of lines that are not blank."""
    digest = xxhash.xxh3_128()
    chunks: list[Chunk] = []
    records = offset = start = 0
    line = first = 1
    with path.open("rb") as stream:
        for text in stream:
            digest.update(text)
            offset += len(text)
            line += 1
            records += not text.isspace()
            if offset - start >= CHUNK_BYTES:
                chunks.append(Chunk(number, name, str(path), "jsonl", start, offset, first, offset - start))
                start, first = offset, line
    if offset > start:
        chunks.append(Chunk(number, name, str(path), "jsonl", start, offset, first, offset - start))
    return digest.hexdigest(), chunks, records


def _array_to_lines(path: Path, lines: Path) -> None:
    """Write each element of a JSON array as one line, holding one element and one window in memory."""
    if lines.exists():
        return
    with path.open(encoding="utf-8-sig") as stream, written_aside(lines) as aside, aside.open("wb") as out:
        for element in _elements(stream, path):
            out.write(orjson.dumps(element) + b"\n")


def _elements(stream: TextIO, path: Path) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    window, place, more = stream.read(_BLOCK), 0, True
    place = window.index("[") + 1
    while True:
        while place < len(window) and window[place] in " \t\r\n,":
            place += 1
        if window.startswith("]", place):
            return
        try:
            element, place = decoder.raw_decode(window, place)
        except ValueError as error:
            if not more:
                raise UsageError(f"The input {path} is not a whole JSON array: {error}.") from error
            block = stream.read(max(_BLOCK, len(window) - place))
            window, place, more = window[place:] + block, 0, bool(block)
            continue
        yield element


def _scan_parquet(number: int, path: Path) -> tuple[Source, list[Chunk]]:
    import pyarrow.parquet

    try:
        meta = pyarrow.parquet.read_metadata(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"The input {path} is not a Parquet file: {error}.") from error
    chunks, first = [], 1
    for group in range(meta.num_row_groups):
        rows, size = meta.row_group(group).num_rows, meta.row_group(group).total_byte_size
        chunks.append(Chunk(number, path.name, str(path), "parquet", group, group + 1, first, size))
        first += rows
    return _columnar(path, "parquet", meta.num_rows), chunks


def _scan_arrow(number: int, path: Path) -> tuple[Source, list[Chunk]]:
    import pyarrow

    chunks: list[Chunk] = []
    first = start = size = rows = 0
    try:
        for place, batch in enumerate(_arrow_batches(path)):
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if size >= CHUNK_BYTES:
                chunks.append(Chunk(number, path.name, str(path), "arrow", start, place + 1, first + 1, size))
                start, first, size = place + 1, rows, 0
    except pyarrow.ArrowInvalid as error:
        raise UsageError(f"The input {path} is not an Arrow file: {error}.") from error
    if rows > first:
        chunks.append(Chunk(number, path.name, str(path), "arrow", start, 1 << 62, first + 1, size))
    return _columnar(path, "arrow", rows), chunks


def _columnar(path: Path, form: SourceForm, rows: int) -> Source:
    size = path.stat().st_size
    return Source(path=str(path), form=form, xxh3=file_digest(path), size_bytes=size, records=rows)


def _arrow_batches(path: Path) -> Iterator[Any]:
    """Record batches of an Arrow stream (as `datasets` writes it) or file, mapped and not read."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as mapped:
        if mapped.read(6) == b"ARROW1":
            reader = pyarrow.ipc.open_file(mapped)
            yield from (reader.get_batch(place) for place in range(reader.num_record_batches))
        else:
            mapped.seek(0)
            yield from pyarrow.ipc.open_stream(mapped)


def read(chunk: Chunk) -> Iterator[tuple[int, Any]]:
    """Yield (number, raw record) of a chunk; a line that cannot be parsed comes as the RecordError that says so."""
    if chunk.form == "jsonl":
        yield from _read_lines(chunk)
    else:
        yield from enumerate(_read_rows(chunk), start=chunk.first)


def _read_lines(chunk: Chunk) -> Iterator[tuple[int, Any]]:
    with Path(chunk.path).open("rb") as stream:
        stream.seek(chunk.start)
        number = chunk.first
        while stream.tell() < chunk.stop:
            line = stream.readline()
            if not line.isspace():
                yield number, _parse(line)
            number += 1


def _parse(line: bytes) -> Any:
    try:
        return orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        return RecordError(f"it is not JSON: {error}")


def _read_rows(chunk: Chunk) -> Iterator[Any]:
    if chunk.form == "parquet":
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(chunk.path) as file:
            for batch in file.iter_batches(batch_size=256, row_groups=list(range(chunk.start, chunk.stop))):
                yield from batch.to_pylist()
        return
    for place, batch in enumerate(_arrow_batches(Path(chunk.path))):
        if place >= chunk.stop:
            return
        if place >= chunk.start:
            for start in range(0, batch.num_rows, 256):
                yield from batch.slice(start, 256).to_pylist()


def file_digest(path: Path) -> str:
    """xxh3-128 of a file's bytes, 32 hex digits."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
