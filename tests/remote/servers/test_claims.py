"""Whom a server's record claims as its own. Lists only: nothing here sends a signal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from remote.shared.processes import find, members, reference, session_leader


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else: its own session, no mark."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    yield process
    process.communicate()


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a record is about."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    yield process
    process.communicate()


def test_a_record_without_a_mark_claims_only_its_own_session(
    server: subprocess.Popen[bytes], bystander: subprocess.Popen[bytes]
) -> None:
    claimed = {process.pid for process in members(reference(server.pid), "")}
    assert claimed == {server.pid}
    assert bystander.pid not in claimed


def test_a_record_without_a_mark_whose_server_is_gone_claims_nobody(
    server: subprocess.Popen[bytes], bystander: subprocess.Popen[bytes]
) -> None:
    gone = reference(server.pid)
    server.communicate(b"\n")
    assert members(gone, "") == []


def test_a_server_that_ended_before_it_was_described_is_still_told_from_others(
    server: subprocess.Popen[bytes], bystander: subprocess.Popen[bytes]
) -> None:
    server.communicate(b"\n")
    gone = session_leader(server.pid)
    assert (gone.pid, gone.group, gone.session) == (server.pid,) * 3
    assert find(gone) is None
    assert members(gone, "") == []
