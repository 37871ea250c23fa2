"""The supervisor's look at the ranks below a server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from remote.servers.probing import ranks
from tests.remote.extract.standin_process import until

pytestmark = pytest.mark.processes

RANK = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(15, b"sglang::schedul")
signal.signal(signal.SIGUSR1, lambda *_: None)
fork = os.fork()
if not fork:
    signal.pause()
    os._exit(0)
os.waitpid(fork, 0)
print("reaped", flush=True)
signal.pause()
"""
LEADER = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {RANK!r}])
sys.stdin.read()
"""


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    """A server's leader with one rank, which has forked."""
    process = subprocess.Popen([sys.executable, "-c", LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        until(lambda: len(titled(process.pid)) == 2, "the rank's fork")
        yield process
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.communicate()


def titled(leader: int) -> list[psutil.Process]:
    """The rank and its fork."""
    below = psutil.Process(leader).children(recursive=True)
    return [child for child in below if child.name().startswith("sglang::")]


def test_the_end_of_a_rank_s_fork_is_no_death_of_a_rank(
    leader: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "POLL_SECONDS", 0.01)
    rank, fork = titled(leader.pid)

    async def watched() -> str:
        death = asyncio.create_task(ranks.RankWatch(leader.pid).death())
        await asyncio.sleep(0)
        os.kill(fork.pid, signal.SIGUSR1)
        assert leader.stdout is not None
        assert await asyncio.to_thread(leader.stdout.readline) == b"reaped\n"
        assert await asyncio.wait({death}, timeout=ranks.OWN_END_SECONDS * 1.5) == (set(), {death})
        os.kill(rank.pid, signal.SIGKILL)
        return await death

    assert f"(pid {rank.pid})" in asyncio.run(watched())
