"""What `inv logs` asks of a host, and the lines that come back.

A position is where the next line begins. It names the file by inode and by a digest of its first bytes, so that
a follower whose connection was cut goes on at the exact byte, or is told that this very file is gone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from remote.shared.messages.envelope import Message


class LogSource(Message):
    """Whose log: a server of the workdir, or a run's extractor."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["server", "run"] = "server"
    name: str = "main"


class LogPosition(Message):
    """The byte at which the next line of a source begins."""

    source: LogSource
    file: str
    """The file's name when it was read; a rotation may have renamed it since. Empty where there was none yet."""
    inode: int
    head: str
    """xxh3-64 of the file's first min(`offset`, 256) bytes: an inode is used again after a deletion."""
    offset: int


class LogsRequest(Message):
    """Which lines: the last `lines` of those that match, and with `follow` all that come after them."""

    sources: list[LogSource] = Field(default_factory=list)
    """Empty means every server in the workdir, those that appear while following included."""
    lines: int | None = Field(default=100, ge=0)
    """None means all."""
    follow: bool = False
    grep: str = ""
    """A regular expression (Python's `re`), searched in each line."""
    access: bool = True
    """False leaves out a server's access lines of health probes and of Roost's own requests that were answered well."""
    since_seconds: float | None = Field(default=None, ge=0)
    """Only what was logged in the last so many seconds, by this host's own clock."""
    resume: list[LogPosition] | None = None
    """Where an earlier call for the same lines was cut; a source without a position here appeared since, and all
    of its lines are new. None is a first call, for which `lines` and `since_seconds` count."""


class LogLines(Message):
    """Some whole lines of one file, in order."""

    type: Literal["lines"] = "lines"
    source: LogSource
    file: str
    lines: list[str]
    """Without their line ends. Bytes that are no UTF-8 read as U+FFFD; a very long line is cut, and says so."""
    end: LogPosition


class LogNotice(Message):
    """Something about the log that is no line of it: a restart, a rotation, a file that is gone."""

    type: Literal["notice"] = "notice"
    source: LogSource
    text: str


class LogStart(Message):
    """First of all: where every source stands, so that a call which is cut before its first line can go on too."""

    type: Literal["start"] = "start"
    positions: list[LogPosition]


LogItem = LogLines | LogNotice
"""What a person sees."""
LogEvent = Annotated[LogLines | LogNotice | LogStart, Field(discriminator="type")]
LOG_EVENT: TypeAdapter[LogEvent] = TypeAdapter(LogEvent)
"""What the verb streams."""


class LogsResult(Message):
    """The answer without `follow`: where each source ended."""

    positions: list[LogPosition]
