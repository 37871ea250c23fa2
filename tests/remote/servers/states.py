"""The processes of a started server in tests: both are recorded."""

from __future__ import annotations

from remote.shared.messages.server import ProcessRef, ServerState


def server_of(state: ServerState) -> ProcessRef:
    assert state.server is not None
    return state.server


def supervisor_of(state: ServerState) -> ProcessRef:
    assert state.supervisor is not None
    return state.supervisor
