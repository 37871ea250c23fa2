"""The request of `inv clean`, and the items on a host's disk."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message

Kind = Literal["run", "job", "payload", "log", "unfinished"]


class CleanRequest(Message):
    """Remove old runs, payloads and logs of this workdir."""

    names: list[str] = Field(default_factory=list)
    """Runs, payload digests or servers (their old logs) to remove at any age; if empty, everything old enough."""
    older_than_seconds: float = 30 * 86_400.0
    """The age since the last change; ignored for named items."""
    force: bool = False
    """Also remove a named run with records that no pull has freed."""
    dry_run: bool = False
    wait_for_lock: bool = False


class Stored(Message):
    """One item on the disk, and whether it is removed."""

    kind: Kind
    name: str
    path: str
    size_bytes: int
    age_seconds: float
    """The time since the item's last change."""
    kept: str = ""
    """Why the item stays; "" if it is removed (with `dry_run`: would be)."""


class CleanResult(Message):
    """All items, largest first."""

    stored: list[Stored] = Field(default_factory=list)
    removed_bytes: int = 0
    """The bytes that were removed; 0 with `dry_run`."""
