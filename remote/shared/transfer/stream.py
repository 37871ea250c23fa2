"""One connection to a sender: requests go out ahead of their answers, frames come back in order.

Runs where the shards land (the laptop, or a host that pulls from another). Starts `ssh … python -c SOURCE` as a
child process, or only the sender if the source is this machine. One thread uses a stream. The far end is not trusted:
its output before the first answer, its stderr and the announced sizes are bounded.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from remote.shared.errors import HostError
from remote.shared.supervised.threads import DeadlineError, Thread
from remote.shared.transfer import sender
from remote.shared.transfer.sender import FRAME, PONG

SOURCE = Path(sender.__file__).read_text(encoding="ascii")
PIPE_BYTES = 1 << 20
HELLO_SECONDS = 60.0
SILENCE_SECONDS = 120.0
"""Digests of a part of 50 GB take longer than ssh's own keepalive, which notices a lost host within 45 s."""
NOISE_BYTES = 1 << 20
_WORDS_BYTES = 600
_F_SETPIPE_SZ = 1031
_STATUS_NOT_FOUND = 127

C = TypeVar("C", bound="Child")


class StreamLost(Exception):
    """The connection broke; unanswered requests are made again, perhaps on another stream."""


class StreamRefused(HostError):
    """The connection was refused and another try would not help: a wrong key, or no Python there."""

    kind = "refused"


class StreamBrokenError(HostError):
    """The far end breaks the sender's protocol; its records are not requested again."""

    kind = "protocol"


@dataclass(frozen=True)
class Frame:
    """The head of an answer; `length` bytes of payload follow."""

    kind: int
    ticket: int
    length: int


class Child:
    """A child process that connects to a host, usually ssh; a context manager that ends it.

    Raises StreamRefused if it cannot be started or trying again would not help, StreamLost if it ends or falls silent.
    """

    def __init__(self, command: list[str], patience: float) -> None:
        pipe = subprocess.PIPE
        try:
            self._child = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
            )
        except OSError as error:
            raise StreamRefused(
                f"{command[0]} could not be started here: {error.strerror}.",
                remedy="Install the OpenSSH client, or put its folder on PATH." if command[0] == "ssh" else "",
            ) from error
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._words = b""
        stderr = self._child.stderr
        self._listener = Thread(lambda: self._listen(stderr), "ssh-stderr")
        self._stdin = self._child.stdin.fileno()
        self._stdout = self._child.stdout.fileno()
        self._coming = select.poll()
        self._coming.register(self._stdout, select.POLLIN)
        self._patience = patience
        """Seconds of silence."""
        self._heard = bytearray()

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_into(self, view: memoryview) -> int:
        """Read the available bytes, at least one; raises StreamLost at the end, or after a long silence."""
        try:
            if not self._coming.poll(self._patience * 1000):
                raise StreamLost(f"nothing came for {self._patience:.0f} s")
            size = os.readv(self._stdout, [view])
        except OSError as error:
            raise StreamLost(str(error)) from error
        if not size:
            raise self._ended()
        return size

    def kill(self) -> None:
        """End the child at once, from any thread; the reading thread sees the end."""
        self._child.kill()

    def close(self) -> None:
        """End the child by closing its stdin, or by a signal if it hangs."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        with contextlib.suppress(DeadlineError):
            self._listener.join(1.0)

    def _listen(self, stream: IO[bytes]) -> None:
        """Read stderr to its end and keep the last bytes."""
        with stream:
            while chunk := stream.read(_WORDS_BYTES):
                self._words = (self._words + chunk)[-_WORDS_BYTES:]

    def write(self, data: bytes) -> None:
        """Send all of `data`."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._stdin, view) :]
        except OSError as error:
            raise self._ended() from error

    def line(self, most_bytes: int, ends_at: float) -> bytes:
        """Return the next line without its end; raises StreamBrokenError if it is longer, StreamLost at `ends_at`."""
        piece = bytearray(1 << 16)
        searched = 0
        while (end := self._heard.find(b"\n", searched)) < 0:
            searched = len(self._heard)
            if searched > most_bytes:
                raise StreamBrokenError(f"The host sent a line of over {most_bytes >> 20} MiB.")
            if time.monotonic() > ends_at:
                raise StreamLost("the answer did not end in time")
            self._heard += piece[: self.read_into(memoryview(piece))]
        line = bytes(self._heard[:end])
        del self._heard[: end + 1]
        return line

    def _ended(self) -> Exception:
        """Return why the stream is over: StreamLost if another try could help, else StreamRefused."""
        try:
            status = self._child.wait(5.0)
        except subprocess.TimeoutExpired:
            return StreamLost("the stream ended although its process still runs")
        with contextlib.suppress(DeadlineError):
            self._listener.join(1.0)
        words = self._last_words()
        hopeless = ("Permission denied", "Host key verification failed")  # a name may resolve again: a laptop woke up
        if status == _STATUS_NOT_FOUND or any(word in words for word in hopeless):
            return StreamRefused(
                f"The bulk connection was refused: {words or 'the command was not found there'}.",
                remedy="If `inv doctor` can log in to this host, compare with `ssh` by hand.",
            )
        return StreamLost(words or f"the connection ended with status {status}")

    def _last_words(self) -> str:
        text = self._words.decode("utf-8", "replace").strip()
        return " ".join(part for part in text.split() if part.isprintable())


class Stream(Child):
    """A connection to a sender."""

    def __init__(self, command: list[str], root: str, payload: str = "") -> None:
        super().__init__(command, HELLO_SECONDS)
        self._hello = {"root": root, "payload": payload}
        self.round_trip = 0.0
        """Seconds, measured once."""
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._stdout, _F_SETPIPE_SZ, PIPE_BYTES)

    def hello(self) -> None:
        """Wait until the sender answers, ignoring what a login shell prints; measures the round trip."""
        nonce = secrets.token_hex(16).encode()
        self.ask({**self._hello, "nonce": nonce.decode()})
        passed, ends_at = 0, time.monotonic() + HELLO_SECONDS
        while (line := self.line(NOISE_BYTES, ends_at)) != nonce:
            passed += len(line) + 1
            if passed > NOISE_BYTES:
                raise StreamBrokenError(
                    "The login shell printed over 1 MiB before the sender's first word.",
                    remedy="Make the shell's start-up files silent for sessions without a terminal.",
                )
        asked = time.monotonic()
        self.ask({"do": "ping", "ticket": 0})
        if self._heard or self.frame() != Frame(PONG, 0, 0):
            raise StreamBrokenError("The host answers, but not as Roost's sender does.")
        self.round_trip = time.monotonic() - asked
        self._patience = SILENCE_SECONDS

    def ask(self, *requests: dict[str, Any]) -> None:
        """Send requests in one write; their answers come in this order."""
        self.write(b"".join(json.dumps(request).encode() + b"\n" for request in requests))

    def frame(self) -> Frame:
        """Read the head of the next answer."""
        return Frame(*FRAME.unpack(self.payload(FRAME.size)))

    def pieces(self, length: int, buffer: memoryview) -> Iterator[memoryview]:
        """Yield the next `length` bytes in `buffer`, filled each time: one read brings as little as an ssh packet.

        If the connection is lost, the bytes that came before are yielded first.
        """
        while length:
            piece, filled = buffer[:length], 0
            try:
                while filled < len(piece):
                    filled += self.read_into(piece[filled:])
            except StreamLost:
                yield piece[:filled]
                raise
            yield piece
            length -= filled

    def payload(self, length: int, most: int = NOISE_BYTES) -> bytes:
        """Read exactly `length` bytes; raises StreamBrokenError if the far end announces more than `most`."""
        if length > most:
            raise StreamBrokenError(f"The host announced an answer of {length:,} bytes; at most {most:,} are possible.")
        data = bytearray(length)
        view = memoryview(data)
        while view:
            view = view[self.read_into(view) :]
        return bytes(data)
