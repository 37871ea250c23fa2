"""One record on its way from the forward pass to its file: seen rows, written rows, and the first error.

Inside SGLang. The admission thread admits rows and writer threads put them into the file; the last writer ends the
record, with a dump or with an `.error.json`. The file is preallocated, so that a full RAM disk is noticed at the first
row, not by a signal at the last row.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from remote.shared.errors import RecordError
from remote.shared.files import ASIDE, FILE_MODE, write_whole
from remote.shared.shard import rowsums
from remote.shared.shard.layout import CONVENTION, Layout
from remote.shared.shard.names import FAILED
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.rows import check_norms

logger = logging.getLogger(__name__)


class Record:
    """The rows of one request. Every method may be called from any thread."""

    def __init__(
        self,
        request: RequestId,
        path: Path,
        layout: Layout,
        boundaries: Sequence[int],
        about: dict[str, str],
        on_end: Callable[[Record], None],
    ) -> None:
        """`path` is the dump's final name, `boundaries` are its slots, and `about` is the metadata of all records.

        `on_end` is called once, on the thread that ends the record.
        """
        self.request = request
        self.path = path
        self.layout = layout
        self.touched_at = time.monotonic()
        self.cause = ""
        self.ended = False
        self.admitted = 0
        """The rows [0, admitted) were seen in forward passes."""
        self._boundaries = boundaries
        self._about = about
        self._on_end = on_end
        self._lock = threading.Lock()
        self._file: int | None = None
        self._outstanding = 0
        self._written = 0
        self._aside = path.with_name(f"{ASIDE}{os.getpid()}-{path.name}")
        self._tokens: NDArray[np.int64] = np.zeros(request.rows, dtype=np.int64)
        self._norms: NDArray[np.float32] = np.zeros((request.rows, layout.slots), dtype=np.float32)
        self._sums: NDArray[np.uint64] = np.zeros((request.rows, layout.slots), dtype=np.uint64)

    def admit(self, first: int, rows: int) -> None:
        """Note the rows [first, first + rows); raises RecordError if they do not follow the rows seen before."""
        self.touched_at = time.monotonic()
        if first > self.admitted:
            missing = f"Rows {self.admitted} to {first - 1} never came"
            raise RecordError(f"{missing}: they were served from a prefix cache, or a chunk was lost.")
        if first < self.admitted:
            raise RecordError(f"Rows from {first} on came twice: the request was prefilled again.")
        if first + rows > self.request.rows:
            raise RecordError(f"{first + rows} rows came, but the request's id says {self.request.rows}.")
        self.admitted = first + rows

    @property
    def complete(self) -> bool:
        """Whether all rows were in forward passes; some of them may not be written yet."""
        return self.admitted == self.request.rows

    def expect(self, pieces: int) -> None:
        """Announce `pieces` further calls of `put` or `lose`."""
        with self._lock:
            self._outstanding += pieces

    def put(
        self,
        first: int,
        states: memoryview,
        tokens: NDArray[np.int64],
        norms: NDArray[np.float32],
        sums: NDArray[np.uint64],
    ) -> int:
        """Write the rows from `first` on: raw bytes of `states`, ids [n], norms and salted row sums [n, slots].

        Returns the bytes written.
        """
        try:
            if self.cause:
                return 0
            end = first + len(tokens)
            self._tokens[first:end] = tokens
            self._norms[first:end] = norms
            self._sums[first:end] = sums
            _write_all(self._open(), states, self.layout.row_offset(first))
            return len(states)
        except OSError as error:
            self.fail(_sentence(error, self.path.parent))
            return 0
        finally:
            self._settle(len(tokens))

    def lose(self, pieces: int) -> None:
        """Cancel expected calls of `put`."""
        for _ in range(pieces):
            self._settle(0)

    def fail(self, cause: str) -> None:
        """Fail the record with `cause`. An earlier cause is kept."""
        with self._lock:
            self.cause = self.cause or cause

    def end_if_failed(self) -> None:
        """End a failed record at once if no writer is busy with it."""
        with self._lock:
            if not self.cause or self._outstanding or self.ended:
                return
            self.ended = True
        self._refuse()
        self._on_end(self)

    def _settle(self, rows: int) -> None:
        with self._lock:
            self._outstanding -= 1
            self._written += rows
            over = self._outstanding == 0 and (bool(self.cause) or self._written == self.request.rows)
            if not over or self.ended:
                return
            self.ended = True
        if not self.cause:
            self._finish()
        if self.cause:
            self._refuse()
        self._on_end(self)

    def _open(self) -> int:
        with self._lock:
            if self._file is None:
                self._file = os.open(self._aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
                os.posix_fallocate(self._file, 0, self.layout.size)
            return self._file

    def _finish(self) -> None:
        try:
            check_norms(self._norms, self._boundaries)
            file = self._open()
            _write_all(file, memoryview(self._tokens.astype("<i8").tobytes()), self.layout.tokens_offset)
            _write_all(file, memoryview(self.layout.header(self._metadata())), 0)
            self._close()
            self._aside.rename(self.path)
        except OSError as error:
            self.cause = _sentence(error, self.path.parent)
        except (RecordError, ValueError) as error:
            self.cause = str(error)

    def _metadata(self) -> dict[str, str]:
        index = "canary" if self.request.index is None else str(self.request.index)
        return {
            **self._about,
            "rid": str(self.request),
            "index": index,
            "rows": str(self.request.rows),
            "token_digest": xxhash.xxh3_128_hexdigest(self._tokens.astype("<i8").tobytes()),
            "dtype": self.layout.dtype,
            "convention": CONVENTION,
            "mean_norm": _numbers(self._norms.mean(axis=0, dtype=np.float64)),
            "max_norm": _numbers(self._norms.max(axis=0)),
            rowsums.NAME: rowsums.text(self._sums.sum(axis=0, dtype=np.uint64)),
            "finite": "true",
        }

    def _refuse(self) -> None:
        """Write the cause instead of a dump, if the directory still exists."""
        self._close()
        with contextlib.suppress(OSError):
            self._aside.unlink(missing_ok=True)
        write_cause(self.path.parent, self.request, self.cause)

    def _close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None


def write_cause(directory: Path, request: RequestId, cause: str) -> None:
    """Write `<rid>.error.json` instead of a dump, and log the cause; a missing directory is not created again."""
    logger.warning("Roost's capture gives up %s: %s", request, cause)
    try:
        if directory.is_dir():
            content = json.dumps({"rid": str(request), "cause": cause}).encode()
            write_whole(directory / f"{request}{FAILED}", content)
    except OSError as error:
        logger.warning("Roost's capture could not say so in %s: %s", directory, error.strerror)


def _write_all(file: int, content: memoryview, offset: int) -> None:
    content = content.cast("B")
    while len(content):
        written = os.pwrite(file, content, offset)
        content, offset = content[written:], offset + written


def _numbers(values: NDArray[np.floating]) -> str:
    return json.dumps([float(f"{value:.6g}") for value in values])


def _sentence(error: OSError, directory: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The file system of {directory} is full."
    if error.errno == errno.ENOENT:
        return f"The dump directory {directory} has vanished."
    return f"The dump could not be written to {directory}: {error.strerror}."
