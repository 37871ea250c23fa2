"""The methods that a kind of detached work overrides to act at certain moments of a session. They do nothing here.

Called by `remote.work.dispatcher` inside its event loop.
"""

from __future__ import annotations

from remote.work.backlog import Task
from remote.work.endpoint import Endpoint


class Hooks:
    """The methods that a dispatcher calls, in the order of a session."""

    takes_all = False
    """Whether a session begins all of the host's records at once, so that none can move to another host."""

    def ordered(self, positions: list[int]) -> list[int]:
        """Return the open records in the order in which they are to be sent."""
        return positions

    observe_seconds = 0.0
    """Seconds between two checks of servers and requests: attempts that end together cause a single check."""

    async def begin(self) -> None:
        """Start the session's tasks. Called before any record is sent."""

    def look(self) -> None:
        """Called several times a second, each time before records are sent."""

    def hindered(self, size: int) -> bool:
        """Return whether something that only this kind of work needs holds the run back. If so, set the status too."""
        return False

    def with_room(self, ready: list[Endpoint], task: Task) -> list[Endpoint]:
        """Return the servers that have room for the files that the attempt will leave."""
        return ready

    def begun(self, task: Task, endpoint: Endpoint) -> None:
        """Called when an attempt was sent."""

    def ended(self, task: Task, endpoint: Endpoint) -> None:
        """Called when an attempt ended, with or without success."""

    def before_records_come_again(self) -> None:
        """Called when no record is in flight, before records are sent again, perhaps under their earlier ids."""

    async def at_last(self) -> None:
        """Called when no record is in flight and no more will be sent. The session's tasks still run."""

    def close(self) -> None:
        """Release the session's resources. Called after every session, also after errors."""

    def last_word(self) -> str:
        """Return text that follows the counts in the log's last line."""
        return ""
