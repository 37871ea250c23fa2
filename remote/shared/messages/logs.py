"""The request of `inv logs`, and the lines that come back.

A position tells where the next line begins. It names the file by its inode and a digest of its first bytes. A follower
whose connection was cut therefore continues at the exact byte, or learns that the file is gone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from remote.shared.messages.envelope import Message


class LogSource(Message):
    """The owner of a log: a server of the workdir, a run's extractor, or a cluster's job that runs one verb."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["server", "run", "job"] = "server"
    name: str = "main"
    task: str = ""
    """For a run on a cluster: the replica's job to which the log belongs."""


class LogPosition(Message):
    """The byte at which a source's next line begins."""

    source: LogSource
    file: str
    """The file's name at the time of reading; it may have been rotated since. Empty if there was no file yet."""
    inode: int
    head: str
    """xxh3-64 of the file's first min(`offset`, 256) bytes, because inodes are reused after a deletion."""
    offset: int


class LogsRequest(Message):
    """Ask for the last `lines` matching lines, and with `follow` for all that come after them."""

    sources: list[LogSource] = Field(default_factory=list)
    """The sources; empty means every server in the workdir, including servers that appear while following."""
    lines: int | None = Field(default=100, ge=0)
    """The number of lines; None means all."""
    follow: bool = False
    grep: str = ""
    """A regular expression (Python's `re`), searched in each line."""
    access: bool = True
    """False leaves out a server's access lines of successful health probes and of Roost's own successful requests."""
    since_seconds: float | None = Field(default=None, ge=0)
    """Only lines that were logged within this time, by the host's own clock."""
    resume: list[LogPosition] | None = None
    """The positions at which an earlier call was cut. A source without a position has appeared since, so all of its
    lines are new. None means a first call, to which `lines` and `since_seconds` apply."""


class LogLines(Message):
    """Whole lines of one file, in order."""

    type: Literal["lines"] = "lines"
    source: LogSource
    file: str
    lines: list[str]
    """Lines without their ends. Bytes that are not UTF-8 become U+FFFD; a very long line is cut, and says so."""
    end: LogPosition


class LogNotice(Message):
    """An event that is not in the log itself: a restart, a rotation, a removed file."""

    type: Literal["notice"] = "notice"
    source: LogSource
    text: str


class LogStart(Message):
    """The first item: the position of every source, so that even a call cut before its first line can continue."""

    type: Literal["start"] = "start"
    positions: list[LogPosition]


LogItem = LogLines | LogNotice
"""The items that a person sees."""
LogEvent = Annotated[LogLines | LogNotice | LogStart, Field(discriminator="type")]
LOG_EVENT: TypeAdapter[LogEvent] = TypeAdapter(LogEvent)
"""Every item that the verb streams."""


class LogsResult(Message):
    """The answer without `follow`: the end position of each source."""

    positions: list[LogPosition]
