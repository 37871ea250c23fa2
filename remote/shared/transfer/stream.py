"""One connection to a sender: requests go out ahead of their answers, frames come back in order.

Runs where the shards land (the laptop, or a host that pulls from another). Starts `ssh … python -c SOURCE` as a
child process, or the sender alone where the source is this very machine. One thread uses it. The far end is not
trusted: what it says before its first answer, on stderr and in front of a payload is bounded.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from remote.shared.errors import HostError
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


class StreamLost(Exception):
    """The connection broke; what was asked and not answered is asked again elsewhere."""


class StreamRefused(HostError):
    """There is no way in, and trying again would not help: a key, a name, a Python that is not there."""

    kind = "refused"


class StreamBrokenError(HostError):
    """The far end does not speak as a sender does; what it sends is not asked for again."""

    kind = "protocol"


@dataclass(frozen=True)
class Frame:
    """The head of an answer; `length` bytes of payload follow."""

    kind: int
    ticket: int
    length: int


class Stream:
    """A context manager around the child process."""

    def __init__(self, command: list[str], root: str, payload: str = "") -> None:
        self._hello = {"root": root, "payload": payload}
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._words = b""
        self._listener = threading.Thread(target=self._listen, args=(self._child.stderr,), daemon=True)
        self._listener.start()
        self._stdin = self._child.stdin.fileno()
        self._stdout = self._child.stdout.fileno()
        self._patience = HELLO_SECONDS
        self.round_trip = 0.0
        """Seconds, measured once."""
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._stdout, _F_SETPIPE_SZ, PIPE_BYTES)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hello(self) -> None:
        """Wait until the sender answers, passing over what a login shell prints; measures the round trip."""
        nonce = secrets.token_hex(16)
        self._write({**self._hello, "nonce": nonce})
        self._pass_over(b"\n" + nonce.encode() + b"\n")
        asked = time.monotonic()
        self.ask({"do": "ping", "ticket": 0})
        if self.frame() != Frame(PONG, 0, 0):
            raise StreamBrokenError("The far end answers, and not as a sender does.")
        self.round_trip = time.monotonic() - asked
        self._patience = SILENCE_SECONDS

    def _pass_over(self, wanted: bytes) -> None:
        """Read to the end of `wanted`, byte by byte, since what follows it is not text."""
        seen, passed, ends_at = b"", 0, time.monotonic() + HELLO_SECONDS
        while seen != wanted:
            seen = seen[-len(wanted) + 1 :] + self._read_byte()
            passed += 1
            if passed > NOISE_BYTES:
                raise StreamBrokenError(
                    "The login shell printed over 1 MiB before the sender's first word.",
                    remedy="Make the shell's start-up files silent for sessions without a terminal.",
                )
            if time.monotonic() > ends_at:
                raise StreamLost(f"no sender spoke within {HELLO_SECONDS:.0f} s")

    def ask(self, *requests: dict[str, Any]) -> None:
        """Send requests; their answers come in this order."""
        for request in requests:
            self._write(request)

    def frame(self) -> Frame:
        """The head of the next answer."""
        return Frame(*FRAME.unpack(self.payload(FRAME.size)))

    def payload(self, length: int, most: int = NOISE_BYTES) -> bytes:
        """Exactly `length` bytes; raises StreamBrokenError where the far end announces more than `most`."""
        if length > most:
            raise StreamBrokenError(f"An answer of {length:,} bytes was announced where {most:,} are possible.")
        data = bytearray(length)
        view = memoryview(data)
        while view:
            view = view[self.read_into(view) :]
        return bytes(data)

    def read_into(self, view: memoryview) -> int:
        """Read what is there, at least one byte; raises StreamLost at the end, or after a long silence."""
        try:
            if not select.select([self._stdout], [], [], self._patience)[0]:
                raise StreamLost(f"nothing came for {self._patience:.0f} s")
            size = os.readv(self._stdout, [view])
        except OSError as error:
            raise StreamLost(str(error)) from error
        if not size:
            raise self._ended()
        return size

    def kill(self) -> None:
        """End the child at once, from any thread: whoever reads sees the end."""
        self._child.kill()

    def close(self) -> None:
        """End the child: stdin's end is enough for a healthy one, a hanging one is terminated."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._listener.join(1.0)

    def _listen(self, stream: IO[bytes]) -> None:
        """Keep the last words of stderr, however many there are."""
        with stream:
            while chunk := stream.read(_WORDS_BYTES):
                self._words = (self._words + chunk)[-_WORDS_BYTES:]

    def _write(self, message: dict[str, Any]) -> None:
        view = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while view:
                view = view[os.write(self._stdin, view) :]
        except OSError as error:
            raise self._ended() from error

    def _read_byte(self) -> bytes:
        byte = bytearray(1)
        self.read_into(memoryview(byte))
        return bytes(byte)

    def _ended(self) -> Exception:
        """Why the stream is over: worth another try, or not."""
        try:
            status = self._child.wait(5.0)
        except subprocess.TimeoutExpired:
            return StreamLost("the stream ended while its process lives")
        self._listener.join(1.0)
        words = self._last_words()
        hopeless = ("Permission denied", "Host key verification failed", "Could not resolve hostname")
        if status == _STATUS_NOT_FOUND or any(word in words for word in hopeless):
            return StreamRefused(
                f"The bulk connection was refused: {words or 'the command was not found there'}.",
                remedy="The same login works for `inv doctor`; compare with `ssh` by hand.",
            )
        return StreamLost(words or f"the connection ended with status {status}")

    def _last_words(self) -> str:
        text = self._words.decode("utf-8", "replace").strip()
        return " ".join(part for part in text.split() if part.isprintable())
