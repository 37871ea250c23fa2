"""What `inv clean` asks of a host, and what lies on its disk."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message

Kind = Literal["run", "payload", "log", "unfinished"]


class CleanRequest(Message):
    """Remove old runs, payloads and logs of this workdir."""

    names: list[str] = Field(default_factory=list)
    """Runs, payload digests or servers (their old logs), whatever their age; empty for everything old enough."""
    older_than_seconds: float = 30 * 86_400.0
    """Counts from the last change; ignored for what is named."""
    force: bool = False
    """Also remove a named run that holds records which no pull has freed."""
    dry_run: bool = False
    wait_for_lock: bool = False


class Stored(Message):
    """One thing on the disk and what becomes of it."""

    kind: Kind
    name: str
    path: str
    size_bytes: int
    age_seconds: float
    """Since its last change."""
    kept: str = ""
    """Why it stays; "" for what is removed (with `dry_run`: would be)."""


class CleanResult(Message):
    """Everything that was looked at, largest first."""

    stored: list[Stored] = Field(default_factory=list)
    removed_bytes: int = 0
    """What was removed; 0 with `dry_run`."""
