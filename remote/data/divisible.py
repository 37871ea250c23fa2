"""Rewrites a source that cannot be read in parts: a JSON array as lines, large Parquet row groups as an Arrow stream.

Called by `remote.data.sources`. Writes the named file in the spool, and nothing if the file exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from remote.data.inputs import InputFile
from remote.shared.errors import UsageError
from remote.shared.files import written_aside

_BLOCK = 4 << 20
_ROWS = 256
"""Rows of a record batch."""
_BETWEEN_ELEMENTS = re.compile(rb'[^"\[\]{},]*([\[\]{},"])')
_IN_ELEMENT = re.compile(rb'[^"\[\]{}]*(?:"[^"\\]{0,64}"[^"\[\]{}]*)*([\[\]{}"])')
"""Everything up to a bracket or the start of a string, with the short strings before it, such as keys and roles.

Only for `match`: `search` would try every place of an element that the window cuts, in quadratic time.
"""
_BACKSLASH = ord("\\")


def array_to_lines(file: InputFile, path: Path, lines: Path) -> None:
    """Write each element of a JSON array as one line, unchanged. Errors in an element are found when it is read."""
    if lines.exists():
        return
    with path.open("rb") as stream, written_aside(lines, durable=False) as aside, aside.open("wb") as out:
        for element in _elements(stream, file):
            out.write(element.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")


def _elements(stream: BinaryIO, file: InputFile) -> Iterator[bytes]:
    """Yield the texts of an array's elements, with only one element and one block in memory."""
    window = stream.read(_BLOCK)
    at = begin = window.index(b"[") + 1
    depth = 0
    while True:
        symbol, end = _next_symbol(window, at, depth)
        if not end:
            block = stream.read(max(_BLOCK, len(window) - begin))
            if not block:
                raise UsageError(f"The input {file.shown} is an incomplete JSON array: it ends inside an element.")
            window, at, begin = window[begin:] + block, at - begin, 0
            continue
        at = end
        if symbol in (b"[", b"{"):
            depth += 1
        elif depth and symbol in (b"]", b"}"):
            depth -= 1
        elif not depth and symbol in (b",", b"]"):
            element = window[begin : end - 1].strip()
            if element or symbol == b",":
                yield element or b"null"
            begin = at
            if symbol == b"]":
                return


def _next_symbol(window: bytes, at: int, depth: int) -> tuple[bytes, int]:
    """Return the next bracket, string (as `"`) or, outside elements, comma after `at`, and the place after it.

    Short strings inside an element are skipped. The place is 0 if the window ends before the symbol does.
    """
    found = (_IN_ELEMENT if depth else _BETWEEN_ELEMENTS).match(window, at)
    if found is None:
        return b"", 0
    symbol = found.group(1)
    return symbol, _end_of_string(window, found.end()) if symbol == b'"' else found.end()


def _end_of_string(window: bytes, start: int) -> int:
    """Return the place after the string whose text begins at `start`; 0 if the string does not end in the window.

    `find` is many times as fast as a regular expression, and a conversation consists of long strings.
    """
    quote = window.find(b'"', start)
    while quote >= 0:
        before = quote
        while before > start and window[before - 1] == _BACKSLASH:
            before -= 1
        if (quote - before) % 2 == 0:
            return quote + 1
        quote = window.find(b'"', quote + 1)
    return 0


def parquet_to_arrow(file: InputFile, path: Path, rows: Path) -> None:
    """Write a Parquet file's rows as an Arrow stream, which can be read in parts; a row group cannot."""
    import pyarrow.parquet

    if rows.exists():
        return
    try:
        with (
            pyarrow.parquet.ParquetFile(path) as source,
            written_aside(rows, durable=False) as aside,
            pyarrow.OSFile(str(aside), "wb") as sink,
            pyarrow.ipc.new_stream(sink, source.schema_arrow) as writer,
        ):
            for batch in source.iter_batches(batch_size=_ROWS):
                writer.write_batch(batch)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's own error, such as "no space left"
            raise
        raise UsageError(
            f"The input {file.shown} cannot be read: {error}.", remedy="The file is damaged: fetch it again."
        ) from error
