"""Is the host there, and with which payload: the cheapest call."""

from __future__ import annotations

from remote.shared.messages.envelope import Message


class HelloRequest(Message):
    """Nothing to say."""


class HelloResult(Message):
    """Who answered."""

    python: str
    """Path of the Python that runs verbs there."""
    version: str
    payload: str
    """Digest of the payload that answered; its folder's name."""
    workdir: str
    clock_at: float
