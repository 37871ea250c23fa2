"""Tells how many more records of a run a host could do, for moving records between hosts. On the host; read-only."""

from __future__ import annotations

from remote.servers.lifecycle import records
from remote.shared.messages.extract import Assignment, Counts, Spare, longest_record
from remote.shared.paths import Workdir
from remote.shared.processes import find

TAKING = ("running", "complete")
"""Status words of a run that could begin further records at once."""
TOKEN_ID_BYTES = 8


def spare(workdir: Workdir, assignment: Assignment, counts: Counts, free_bytes: int, word: str) -> Spare:
    """Return how many further tokens fit on the disk, and whether the host could begin them now."""
    record_bytes = assignment.identity.row_bytes + TOKEN_ID_BYTES
    room = (free_bytes - assignment.min_free_bytes) // record_bytes - counts.tokens_open
    return Spare(
        takes=word in TAKING and _has_server(workdir, assignment),
        room_tokens=max(0, room),
        longest=longest_record(assignment.context_length),
    )


def _has_server(workdir: Workdir, assignment: Assignment) -> bool:
    """Return whether a server of the assignment is ready, by its record and the process table."""
    states = [records.load(workdir.server(name)) for name in assignment.server_names]
    return any(state is not None and state.status == "ready" and find(state.server) is not None for state in states)
