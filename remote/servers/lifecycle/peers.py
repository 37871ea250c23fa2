"""Makes a server over several hosts end as a whole: its supervisors talk over the nodes' private network.

Runs inside each supervisor of such a server. Rank 0 listens next to the rendezvous port, on the private address alone.
The other supervisors connect and authenticate with a token that the laptop made for this start. They exchange JSON
lines: a greeting, readiness, a beat every few seconds, and an end with its cause. Silence counts as an end, because a
host without power says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from typing import Literal

from pydantic import Field, ValidationError

from remote.shared.errors import HostError
from remote.shared.messages.envelope import Message
from remote.shared.messages.server import ServerSpec
from remote.shared.supervised import tasks

LINK_PORT_OFFSET = 1
BEAT_SECONDS = 5.0
SILENCE_SECONDS = 20.0
RETRY_SECONDS = 0.5
LINK_SECONDS = 120.0
"""The longest time between the first and the last node's start."""
LINE_BYTES = 1 << 16


class Say(Message):
    """One line between supervisors."""

    kind: Literal["hello", "ready", "beat", "end"]
    rank: int = 0
    token: str = ""
    cause: str = ""
    stopped: bool = False
    """A person asked for the end."""


class PeerEnd(Message):
    """Why the other nodes have to end as well."""

    cause: str
    stopped: bool = Field(default=False)


class Link:
    """This node's connections to the other supervisors, opened for one start and closed after it."""

    def __init__(self, spec: ServerSpec, token: str) -> None:
        if spec.dist_init_addr is None or not token:
            raise HostError(f"Server {spec.name!r} spans hosts, but was given no rendezvous address or token.")
        self._spec = spec
        self._token = token
        host, _, port = spec.dist_init_addr.rpartition(":")
        self._address = (host.strip("[]"), int(port) + LINK_PORT_OFFSET)
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._linked = asyncio.Event()
        self._ready = asyncio.Event()
        self._lost: asyncio.Future[PeerEnd] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Listen (rank 0) or begin to connect; raises HostError if rank 0 cannot listen on the address."""
        if self._spec.node_rank == 0:
            try:
                self._server = await asyncio.start_server(self._accept, *self._address, limit=LINE_BYTES)
            except OSError as error:
                where = f"{self._address[0]}:{self._address[1]}"
                raise HostError(
                    f"The supervisors' link cannot listen on {where}: {error.strerror}.",
                    remedy="Check `private_interface`, and that nothing else uses the port.",
                ) from error
        else:
            self._tasks.append(tasks.start(self._connect(), "the link to rank 0", self._broke))
        self._tasks.append(tasks.start(self._beat(), "the beats", self._broke, endless=True))

    async def wait_linked(self) -> None:
        """Return once every other supervisor was heard; raises HostError naming the nodes that were not."""
        try:
            await asyncio.wait_for(self._linked.wait(), LINK_SECONDS)
        except asyncio.TimeoutError as error:
            others = set(range(len(self._spec.nodes))) if self._spec.node_rank == 0 else {0}
            silent = sorted(others - {self._spec.node_rank} - set(self._writers))
            raise HostError(
                f"{', '.join(self._name(rank) for rank in silent)} was not heard within {LINK_SECONDS:.0f} s.",
                remedy="Start the server on all nodes at once; they must reach each other over `private_interface`.",
            ) from error

    async def wait_ready(self) -> None:
        """Return once rank 0 has said that the server, as a whole, is ready."""
        await self._ready.wait()

    async def say_ready(self) -> None:
        """Tell the other nodes that the server is ready; only rank 0 calls this."""
        await self._say(Say(kind="ready"))

    async def lost(self) -> PeerEnd:
        """Wait for the end of another node and return the first."""
        return await asyncio.shield(self._lost)

    async def close(self, cause: str, *, stopped: bool) -> None:
        """Tell the other nodes why this node ended, and close the connections."""
        await self._say(Say(kind="end", rank=self._spec.node_rank, cause=cause, stopped=stopped))
        for task in self._tasks:
            task.cancel()
        for writer in self._writers.values():
            writer.close()
        if self._server is not None:
            self._server.close()

    async def _connect(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(*self._address, limit=LINE_BYTES)
                break
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
        self._writers[0] = writer
        await self._say(Say(kind="hello", rank=self._spec.node_rank, token=self._token))
        self._linked.set()
        await self._listen(0, reader)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._greet(reader, writer)
        except Exception as error:
            self._broke(error)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await _heard(reader)
        if hello is None or hello.kind != "hello" or not hmac.compare_digest(hello.token, self._token):
            writer.close()
            return
        self._writers[hello.rank] = writer
        if len(self._writers) == len(self._spec.nodes) - 1:
            self._linked.set()
        await self._listen(hello.rank, reader)

    async def _listen(self, rank: int, reader: asyncio.StreamReader) -> None:
        while True:
            said = await _heard(reader)
            if said is None:
                self._end(f"the supervisor of {self._name(rank)} is no longer heard", stopped=False)
                return
            if said.kind == "ready":
                self._ready.set()
            elif said.kind == "end":
                what = "was stopped" if said.stopped else f"ended: {said.cause}"
                self._end(f"{self._name(rank)} {what}", stopped=said.stopped)
                return

    def _broke(self, error: BaseException) -> None:
        """End this node after a failure of its link: it would no longer hear of the other nodes' ends."""
        self._end(f"this node's link to the others failed ({type(error).__name__}: {error})", stopped=False)

    def _end(self, cause: str, *, stopped: bool) -> None:
        if not self._lost.done():
            self._lost.set_result(PeerEnd(cause=cause, stopped=stopped))

    def _name(self, rank: int) -> str:
        return f"node {self._spec.nodes[rank]} (rank {rank})"

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self._say(Say(kind="beat"))

    async def _say(self, say: Say) -> None:
        """Send a line to every connected node; `_listen` notices a node that is gone. Nodes may connect meanwhile."""
        for writer in list(self._writers.values()):
            writer.write(say.model_dump_json(exclude_defaults=True).encode() + b"\n")
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.drain(), BEAT_SECONDS)


async def _heard(reader: asyncio.StreamReader) -> Say | None:
    """Return the next line; None if the link is closed, silent for too long, or sends something else."""
    try:
        line = await asyncio.wait_for(reader.readline(), SILENCE_SECONDS)
        return Say.model_validate_json(line) if line else None
    except (OSError, ValueError, asyncio.TimeoutError, ValidationError):
        return None
