"""The cheapest call: whether a host answers, and with which payload."""

from __future__ import annotations

from remote.shared.messages.envelope import Message


class HelloRequest(Message):
    """Ask a host to answer."""


class HelloResult(Message):
    """The host's Python, payload and clock."""

    python: str
    """The path of the Python that runs verbs on the host."""
    version: str
    payload: str
    """The digest of the payload that answered, which is also its folder's name."""
    workdir: str
    clock_at: float
