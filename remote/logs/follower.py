"""Runs on the host for `remote.logs.verb`: one source's lines in order, over restarts. Reads logs only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from remote.logs.backlog import backlog_start
from remote.logs.chain import Chain
from remote.logs.lines import LineReader
from remote.logs.pattern import Pattern
from remote.shared.messages.logs import LogItem, LogLines, LogNotice, LogPosition
from remote.shared.redact import log_line

CHUNKS_A_TURN = 16
"""One source reads at most this many chunks before another gets its turn."""


class Follower:
    """Yields every line of one source from a chosen byte on, each exactly once."""

    def __init__(self, chain: Chain, pattern: Pattern | None) -> None:
        self._chain = chain
        self._pattern = pattern
        self._reader: LineReader | None = None

    @property
    def position(self) -> LogPosition | None:
        """The position of the next line; None while there is no file."""
        reader = self._reader
        if reader is None:
            return None
        return LogPosition(
            source=self._chain.source,
            file=reader.path.name,
            inode=reader.inode,
            head=reader.head(),
            offset=reader.offset,
        )

    def start(self, lines: int | None, since: float | None) -> None:
        """Start at the requested backlog; if there is no file yet, start at the beginning of the first one."""
        files = self._chain.files()
        if files:
            begin = backlog_start(files, lines, self._pattern, since)
            self._reader = LineReader(begin.path, begin.offset)

    def resume(self, position: LogPosition) -> Iterator[LogItem]:
        """Continue at `position` in the same file, even if it was renamed; yield a notice if the file is gone."""
        if not position.file:
            return  # there was no log yet, so everything in it is new
        files = self._chain.files()
        for path in files:
            if path.stat().st_ino == position.inode:
                reader = LineReader(path, position.offset)
                if reader.size >= position.offset and reader.head() == position.head:
                    self._reader = reader
                    return
                reader.close()
        text = f"{position.file} was removed or rewritten while nobody read it: lines after byte {position.offset}"
        yield self._notice(f"{text} may be missing here.")
        later = self._chain.not_older(position.file, files)
        if later:
            self._reader = LineReader(later[0])

    def poll(self) -> Iterator[LogItem]:
        """Yield the lines written since the last call, until there are no more."""
        files = self._chain.files()
        if self._reader is None:
            if not files:
                return
            self._reader = LineReader(files[0])
            yield self._notice(f"{files[0].name} begins.")
        # Newer files are listed before the old file is read, so that no line written to it until then is missed.
        newer = self._newer(files, self._reader)
        if self._reader.was_rewritten():
            yield self._notice(f"{self._reader.path.name} was emptied and is being written from its beginning.")
            self._reader.restart(0)
        yield from self._read(self._reader)
        if newer and self._reader.at_end:
            yield from self._go_on_with(newer[0])

    def newest(self) -> tuple[int, int] | None:
        """Return inode and size of the newest file: the place at which a call without `follow` may stop."""
        files = self._chain.files()
        if not files:
            return None
        status = files[-1].stat()
        return status.st_ino, status.st_size

    def reached(self, target: tuple[int, int] | None) -> bool:
        """Return whether everything up to `target` (from `newest`) was yielded."""
        reader = self._reader
        if target is None or reader is None:
            return target is None
        return reader.inode == target[0] and (reader.offset >= target[1] or reader.at_end)

    def finish(self) -> Iterator[LogItem]:
        """Yield the last line even if it lacks its newline, for a call without `follow`."""
        if self._reader is not None and self._reader.at_end and (rest := self._reader.rest()):
            yield self._lines(self._reader, rest)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _go_on_with(self, path: Path) -> Iterator[LogItem]:
        following = LineReader(path)
        yield from self.finish()
        before = self._reader
        self._reader = following
        if before is not None:
            before.close()
            yield self._notice(f"{before.path.name} ended; {path.name} follows.")

    def _read(self, reader: LineReader) -> Iterator[LogItem]:
        turns = CHUNKS_A_TURN
        while turns and not reader.at_end:
            before = reader.offset
            lines = reader.read()
            if reader.offset > before:
                turns -= 1
                yield self._lines(reader, lines)

    def _lines(self, reader: LineReader, lines: list[str]) -> LogLines:
        """Return the matching lines and the new position, which advances even without a match."""
        if self._pattern is not None:
            lines = [line for line in lines if self._pattern.search(line)]
        position = self.position
        assert position is not None
        return LogLines(
            source=self._chain.source, file=reader.path.name, lines=[log_line(line) for line in lines], end=position
        )

    def _newer(self, files: list[Path], reader: LineReader) -> list[Path]:
        for number, path in enumerate(files):
            if _inode(path) == reader.inode:
                return files[number + 1 :]
        return self._chain.not_older(reader.path.name, files)

    def _notice(self, text: str) -> LogNotice:
        return LogNotice(source=self._chain.source, text=text)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
