"""The verb `logs`, called by `inv logs`. Runs on the host; reads logs, writes nothing.

It polls every tenth of a second, because inotify needs a package that not every SGLang install has, and does not work
on network file systems.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from remote.context import Context
from remote.logs.chain import chain, expanded, server_sources
from remote.logs.follower import Follower
from remote.logs.pattern import Pattern
from remote.shared.errors import HostError
from remote.shared.messages.logs import LogItem, LogNotice, LogPosition, LogSource, LogsRequest, LogsResult, LogStart
from remote.shared.paths import Workdir

POLL_SECONDS = 0.1


def logs(request: LogsRequest, context: Context) -> LogsResult:
    """Stream the requested lines; with `follow`, until the caller ends this process."""
    session = _Session(request, context.workdir)
    try:
        for item in session.begin():
            context.report.item(item)
        context.report.item(LogStart(positions=session.standing()))
        for item in session.backlog():
            context.report.item(item)
        if request.follow:
            _follow(session, context)
        return LogsResult(positions=session.positions())
    except PermissionError as error:
        raise HostError(f"{error.filename} cannot be read by this user.") from error


def _follow(session: _Session, context: Context) -> None:
    """Stream new lines and never return: the process is interrupted when the caller closes stdin."""
    while True:
        silent = True
        for item in session.poll():
            context.report.item(item)
            silent = False
        if silent:
            time.sleep(POLL_SECONDS)


class _Session:
    """The followers of one call, including servers that appear during the call."""

    def __init__(self, request: LogsRequest, workdir: Workdir) -> None:
        self._request = request
        self._workdir = workdir
        self._pattern = None if request.access and not request.grep else Pattern(request.grep, access=request.access)
        self._followers: dict[LogSource, Follower] = {}

    def begin(self) -> Iterator[LogItem]:
        """Start every source at its first line, and yield notices about missing logs and files."""
        for source in self._sources():
            self._add(source)
        if self._request.resume is not None:
            for position in self._request.resume:
                yield from self._add(position.source).resume(position)
            return
        since = self._request.since_seconds
        since_at = None if since is None else time.time() - since
        for follower in self._followers.values():
            follower.start(self._request.lines, since_at)
        yield from self._say_what_lacks()

    def backlog(self) -> Iterator[LogItem]:
        """Yield everything written so far."""
        for follower in self._followers.values():
            yield from self._up_to_now(follower)

    def poll(self) -> Iterator[LogItem]:
        for source in self._sources():
            yield from self._add(source).poll()

    def standing(self) -> list[LogPosition]:
        """Return the positions of all sources, including those without a log yet."""
        return [
            follower.position or LogPosition(source=source, file="", inode=0, head="", offset=0)
            for source, follower in self._followers.items()
        ]

    def positions(self) -> list[LogPosition]:
        """Return the position of every source that has a log."""
        return [at for follower in self._followers.values() if (at := follower.position) is not None]

    def _sources(self) -> list[LogSource]:
        wanted = self._request.sources or server_sources(self._workdir)
        return [one for source in wanted for one in expanded(self._workdir, source)]

    def _add(self, source: LogSource) -> Follower:
        if source not in self._followers:
            self._followers[source] = Follower(chain(self._workdir, source), self._pattern)
        return self._followers[source]

    def _up_to_now(self, follower: Follower) -> Iterator[LogItem]:
        """Yield the lines up to the present end, even if lines are written faster than they are read."""
        if self._request.follow:
            return
        target = follower.newest()
        while not follower.reached(target) and (items := list(follower.poll())):
            yield from items
        yield from follower.finish()

    def _say_what_lacks(self) -> Iterator[LogItem]:
        """Report a source without a log: as a notice when following, as an error if it is the only source."""
        lacking = [source for source, follower in self._followers.items() if follower.position is None]
        if not self._request.follow and len(lacking) == len(self._followers):
            raise HostError(
                f"There is no log of {_names(lacking) if lacking else 'any server'} in {self._workdir.root}.",
                remedy="`inv status` lists servers and runs here; `--follow` waits for a log to appear.",
            )
        for source in lacking:
            yield LogNotice(source=source, text=f"There is no log of {source.kind} {source.name!r} yet.")


def _names(sources: list[LogSource]) -> str:
    return ", ".join(f"{source.kind} {source.name!r}" for source in sources)
