"""Delays connections on loopback: forwards every connection to another port, each byte by the same number of seconds.

A replacement for netem in user space, in a separate process. Bytes wait in kernel pipes and never enter this program
(`splice`), so it takes little CPU time from the measured programs.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

TICK_SECONDS = 0.002
"""Looks around so often and then moves all that has come: on average that is late by one tick, which is taken off."""
_CHUNK_BYTES = 1 << 20
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


@dataclass
class _Chunk:
    """Delayed bytes in their own pipe. A chunk without bytes is the end of the stream."""

    due: float
    pipe: tuple[int, int]
    left: int


@dataclass
class _Way:
    """One direction of a connection, with its oldest chunk first."""

    source: socket.socket
    target: socket.socket
    under_way: deque[_Chunk] = field(default_factory=deque)
    at_end: bool = False
    over: bool = False


class Delay:
    """Listens on `port`, and forwards connections with a delay."""

    def __init__(self, target: int, one_way_seconds: float) -> None:
        self._target = target
        self._delay = max(0.0, one_way_seconds - TICK_SECONDS)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.setblocking(False)
        self._connections: list[tuple[_Way, _Way]] = []
        self._pipes: list[tuple[int, int]] = []
        self.port: int = self._listener.getsockname()[1]

    def run(self, stop: int) -> None:
        """Forward until the descriptor `stop` becomes readable."""
        while not select.select([stop], [], [], TICK_SECONDS)[0]:
            if not self._connections:
                select.select([stop, self._listener.fileno()], [], [])
            self._accept()
            for ways in self._connections:
                try:
                    for way in ways:
                        self._receive(way)
                        self._deliver(way)
                except OSError:
                    self._close(ways)
                if all(way.over for way in ways):
                    self._close(ways)
            self._connections = [ways for ways in self._connections if not all(way.over for way in ways)]

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._target))
            for end in (near, far):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.append((_Way(near, far), _Way(far, near)))

    def _receive(self, way: _Way) -> None:
        """Take all bytes that have arrived; raise OSError if the connection is broken."""
        due = time.monotonic() + self._delay
        while not way.at_end:
            pipe = self._pipes.pop() if self._pipes else os.pipe()
            try:
                size = os.splice(way.source.fileno(), pipe[1], _CHUNK_BYTES, flags=_FLAGS)
            except BlockingIOError:
                self._pipes.append(pipe)
                return
            way.under_way.append(_Chunk(due, pipe, size))
            way.at_end = not size

    def _deliver(self, way: _Way) -> None:
        """Send the bytes that are due, as far as the other side accepts them."""
        now = time.monotonic()
        with suppress(BlockingIOError):
            while way.under_way and way.under_way[0].due <= now:
                chunk = way.under_way[0]
                while chunk.left:
                    chunk.left -= os.splice(chunk.pipe[0], way.target.fileno(), chunk.left, flags=_FLAGS)
                self._pipes.append(chunk.pipe)
                way.under_way.popleft()
                if way.at_end and not way.under_way:
                    way.target.shutdown(socket.SHUT_WR)
                    way.over = True

    def _close(self, ways: tuple[_Way, _Way]) -> None:
        for way in ways:
            way.source.close()
            way.over = True
            while way.under_way:
                for end in way.under_way.popleft().pipe:
                    os.close(end)


@contextmanager
def delayed(target: int, one_way_seconds: float) -> Iterator[int]:
    """Delay connections to the port `target`; yield the port to which clients connect."""
    command = [sys.executable, "-m", "benchmarks.delay", str(target), str(one_way_seconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    running = Delay(int(sys.argv[1]), float(sys.argv[2]))
    print(running.port, flush=True)
    running.run(sys.stdin.fileno())
