"""The moments of a session at which one kind of detached work may do what only it needs; each does nothing here.

Called by `remote.work.dispatcher` inside its event loop.
"""

from __future__ import annotations

from remote.work.backlog import Task
from remote.work.endpoint import Endpoint


class Hooks:
    """What a dispatcher calls, in the order of a session."""

    takes_all = False
    """Whether all of the host's records are begun at once, so that none can go to another host while it works."""

    def ordered(self, positions: list[int]) -> list[int]:
        """The open records in the order in which they are sent."""
        return positions

    observe_seconds = 0.0
    """How long what was seen of servers and wishes is good for; many tries that end at once are then one look."""

    async def begin(self) -> None:
        """The session's tasks may be started now; nothing has been sent."""

    def look(self) -> None:
        """Called several times a second, before anything is sent."""

    def hindered(self, size: int) -> bool:
        """Whether something that only this kind of work needs holds the run back; says what, if so."""
        return False

    def with_room(self, ready: list[Endpoint], task: Task) -> list[Endpoint]:
        """Those of the servers for which there is room for what the try leaves on the way."""
        return ready

    def begun(self, task: Task, endpoint: Endpoint) -> None:
        """A try was sent."""

    def ended(self, task: Task, endpoint: Endpoint) -> None:
        """A try ended, however it did."""

    def before_records_come_again(self) -> None:
        """Nothing is in flight, and records that are open again may be sent under the ids that they had."""

    async def at_last(self) -> None:
        """Nothing is in flight any more, and nothing more is sent; the session's tasks still run."""

    def close(self) -> None:
        """Let go of what the session holds, however it ended."""

    def last_word(self) -> str:
        """What the log's last line says beyond the counts."""
        return ""
