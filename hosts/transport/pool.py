"""The connections of one host: calls share a connection as long as the server accepts another session on it.

No call fails because a server refuses a session (`MaxSessions`): another connection is opened, or the call waits until
a session ends. A connection that failed gets no new calls, and is closed when its last call has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

MOST_CONNECTIONS = 4
ROOM_SECONDS = 60.0
"""How long a call waits for another call's session to end."""
LAG_SECONDS = 0.05

T = TypeVar("T")


class PoolFullError(Exception):
    """The server refused one more session. A link raises this at once, the pool after a minute without room."""

    def __init__(self, sessions: int = 0) -> None:
        super().__init__(f"{sessions} sessions are in use")
        self.sessions = sessions


class Connected(Protocol):
    """One connection to a host."""

    @property
    def is_alive(self) -> bool:
        """Return whether the connection can take another session, as far as this end knows."""

    def close(self) -> None:
        """End the connection with every session on it."""


L = TypeVar("L", bound=Connected)


class _Member:
    """One connection, the number of its sessions, and the number of sessions that the server is known to allow."""

    def __init__(self, link: Connected) -> None:
        self.link = link
        self.sessions = 0
        self.peak = 0
        self.most: int | None = None
        self.retired = False

    @property
    def has_room(self) -> bool:
        return not self.retired and self.link.is_alive and (self.most is None or self.sessions < self.most)


class Pool:
    """Thread-safe; `connect` opens a connection, or raises a RoostError."""

    def __init__(self, connect: Callable[[], Connected]) -> None:
        self._connect = connect
        self._members: list[_Member] = []
        self._changed = threading.Condition()
        self._connecting = False

    def use(self, start: Callable[..., T]) -> T:
        """Return `start(link, done)`, which begins a session and must call `done` once when the session ends.

        Raises PoolFullError if no session became free within a minute, and the RoostErrors of `start` and `connect`.
        """
        deadline = time.monotonic() + ROOM_SECONDS
        while True:
            member = self._room(deadline)
            try:
                started = start(member.link, lambda member=member: self._leave(member))
            except PoolFullError:
                if not self._learn(member):
                    raise
            except BaseException:
                self._leave(member, retire=True)
                raise
            else:
                member.peak = max(member.peak, member.sessions)
                return started

    def close(self) -> None:
        """End every connection, except a connection that another thread's call is just opening."""
        with self._changed:
            members, self._members = self._members, []
        for member in members:
            member.link.close()

    def _room(self, deadline: float) -> _Member:
        """Return a connection on which a session was reserved. The caller must release the session."""
        with self._changed:
            while True:
                self._members = [member for member in self._members if member.link.is_alive or member.sessions]
                member = next((member for member in self._members if member.has_room), None)
                if member is not None:
                    member.sessions += 1
                    return member
                if not self._connecting and self._usable() < MOST_CONNECTIONS:
                    self._connecting = True
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    raise PoolFullError(sum(member.sessions for member in self._members))
                self._changed.wait(left)
        return self._another()

    def _usable(self) -> int:
        return sum(not member.retired and member.link.is_alive for member in self._members)

    def _another(self) -> _Member:
        """Open one more connection outside the lock, while other calls wait for it."""
        member = None
        try:
            member = _Member(self._connect())
            member.sessions = 1
            return member
        finally:
            with self._changed:
                self._connecting = False
                if member is not None:
                    self._members.append(member)
                self._changed.notify_all()

    def _learn(self, member: _Member) -> bool:
        """Note that the server refused a session. Return False if it has never allowed a session on this connection.

        A server counts a session for some milliseconds after its end; a refusal in that time does not tell the limit.
        """
        with self._changed:
            member.sessions -= 1
            if member.peak == 0 and member.sessions == 0:
                return False
            # With a peak of 0, the first session of another call is just beginning.
            if member.sessions < member.peak or member.peak == 0:
                self._changed.wait(LAG_SECONDS)
            else:
                member.most = member.sessions
            self._changed.notify_all()
            return True

    def _leave(self, member: _Member, retire: bool = False) -> None:
        with self._changed:
            member.sessions -= 1
            member.retired = member.retired or retire
            idle = member.retired and member.sessions <= 0
            if idle and member in self._members:
                self._members.remove(member)
            self._changed.notify_all()
        if idle:
            member.link.close()
