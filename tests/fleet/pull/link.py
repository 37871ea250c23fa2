"""A userspace link between two ends on loopback: delays bytes, and can be cut. For tests."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

_READ_BYTES = 256 << 10


class Link:
    """Listens on a port of its own and forwards every connection to `target`; a context manager."""

    def __init__(self, target: int, *, one_way_seconds: float = 0.0, cut_after_bytes: int | None = None) -> None:
        self.port = 0
        self.connections = 0
        self._target = target
        self._delay = one_way_seconds
        self._left = cut_after_bytes
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)

    def __enter__(self) -> Link:
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def cut(self) -> None:
        """Drop every connection, in the middle of whatever is under way; new ones are taken."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, far_writer}
        await asyncio.gather(
            self._forward(reader, far_writer, counts=False), self._forward(far_reader, writer, counts=True)
        )

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool) -> None:
        queue: deque[tuple[float, bytes]] = deque()
        filled = asyncio.Event()
        sender = asyncio.ensure_future(self._send(queue, filled, writer))
        try:
            while data := await reader.read(_READ_BYTES):
                queue.append((self._loop.time() + self._delay, data))
                filled.set()
                if counts and self._left is not None:
                    self._left -= len(data)
                    if self._left <= 0:
                        self._left = None
                        self._cut()
        except ConnectionError:
            pass
        queue.append((self._loop.time() + self._delay, b""))
        filled.set()
        await sender

    async def _send(
        self, queue: deque[tuple[float, bytes]], filled: asyncio.Event, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                while not queue:
                    filled.clear()
                    await filled.wait()
                due, data = queue.popleft()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()
