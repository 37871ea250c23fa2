"""The trail of changes: each command with its operator, kept on the laptop and on each host (verb `trail`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message, Typed

Ending = Literal["ok", "failed", "refused", "interrupted"]
"""refused: wrong usage, nothing was changed; interrupted: Ctrl-C, or the connection was cut."""


class Step(Message):
    """One line of a trail: the beginning or the end of a command."""

    at: float
    """Unix time, by the clock of the machine that wrote the line."""
    typed: Typed
    operator: str
    """The operator, as `user@laptop`."""
    origin: str = ""
    """On a host: the address from which the connection came; "" on the laptop itself."""
    verb: str = ""
    """On a host: the verb."""
    hosts: list[str] = Field(default_factory=list)
    """On the laptop: the hosts of the command."""
    ending: Ending | None = None
    """None if the line is the beginning of the command."""
    seconds: float = 0.0


class TrailRequest(Message):
    """Ask for a host's trail."""

    since: float = 0.0
    """Only lines from this Unix time on."""


class TrailSteps(Message):
    """A trail's lines, oldest first."""

    steps: list[Step]
    damaged: int = 0
    """Lines that could not be read."""
