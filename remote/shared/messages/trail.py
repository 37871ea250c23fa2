"""The trail of changes: who typed what, kept on the laptop and on each host; the verb `trail` reads a host's."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message, Typed

Ending = Literal["ok", "failed", "refused", "interrupted"]
"""refused: wrong usage, nothing was changed; interrupted: Ctrl-C, or the connection was cut."""


class Step(Message):
    """One line of a trail: a command began, or it ended."""

    at: float
    """Unix time, by the clock of the machine that wrote the line."""
    typed: Typed
    operator: str
    """`user@laptop`."""
    origin: str = ""
    """On a host: the address that the connection came from; "" on the laptop itself."""
    verb: str = ""
    """On a host: what it was asked to do."""
    hosts: list[str] = Field(default_factory=list)
    """On the laptop: the hosts that the command named."""
    ending: Ending | None = None
    """None if the command begins with this line."""
    seconds: float = 0.0


class TrailRequest(Message):
    """Ask for a host's trail."""

    since: float = 0.0
    """Unix time."""


class TrailSteps(Message):
    """A trail's lines, oldest first."""

    steps: list[Step]
    damaged: int = 0
    """Lines that could not be read."""
