"""The far end of a pull: sends the requested byte ranges of shards, and the digests of their blocks.

Runs on the source host as `python -I -S -c SOURCE` (`stream.py` passes this file's text), so it needs neither a
payload nor a package, and reads only. Each request is a JSON line on stdin: first {"root", "nonce", "payload"}, then
any number of {"do", "ticket", "name", "size", ...}, where `size` is the number of plain bytes by the ledger:

    "ping"                           -> PONG
    "read", "offset", "length"       -> DATA and `length` raw bytes
    "packed", "offset", "length"     -> PACKED and the pieces of that range (`remote.shared.codec`)
    "digests", "length"              -> DIGESTS of the blocks of the first `length` bytes

A file of another size, or that cannot be read, is REFUSED with a sentence. Requests are answered in order, so the
asking side keeps several in flight and the wire never waits for a round trip. Only compression (`packed`, and shards
that are compressed at rest) imports anything: `remote.shared.codec` from the folder `payload`.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

FRAME = struct.Struct("!B3xIQ")
"""Before every answer: kind, ticket, length in bytes of what follows."""
PONG, DATA, DIGESTS, REFUSED, PACKED = range(5)

BLOCK_BYTES = 4 << 20
"""The bytes of one request, and of one digest when the remains of an earlier pull are compared."""
DIGEST_BYTES = 16


def block_digest(block: bytes | memoryview) -> bytes:
    """Return the Blake2b digest of one block; Blake2b is fast without CPU support and in every Python."""
    return hashlib.blake2b(block, digest_size=DIGEST_BYTES).digest()


class Refusal(Exception):
    """A sentence for the person who pulls."""


class Plain:
    """A shard that is not compressed."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)

    @property
    def size(self) -> int:
        """The size now, so that a change while the shard is read is noticed."""
        return os.fstat(self.descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes of a range."""
        return os.pread(self.descriptor, length, offset)

    def send(self, offset: int, length: int) -> None:
        """Copy a range to stdout inside the kernel; ends the program if the file has become shorter."""
        while length:
            sent = os.sendfile(1, self.descriptor, offset, min(length, 1 << 20))
            if not sent:
                sys.exit(3)
            offset += sent
            length -= sent

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)


class Compressed:
    """A shard that is compressed at rest, read as its plain bytes."""

    def __init__(self, path: Path) -> None:
        from remote.shared.codec.reader import CompressedShard

        try:
            self._shard = CompressedShard(path)
        except ValueError as error:
            raise Refusal(f"{path.name} is damaged there: {error}") from error
        self.size = self._shard.size

    def read(self, offset: int, length: int) -> bytes:
        """Return the plain bytes of a range."""
        self._shard.seek(offset)
        parts = []
        while length and (part := self._shard.read(length)):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def send(self, offset: int, length: int) -> None:
        """Send the plain bytes of a range, a block at a time."""
        for start in range(offset, offset + length, BLOCK_BYTES):
            write(self.read(start, min(BLOCK_BYTES, offset + length - start)))

    def close(self) -> None:
        """Close the file."""
        self._shard.close()


class Source:
    """The folder of the shards; keeps the newest file open, because ranges of one file follow each other."""

    def __init__(self, root: str, payload: str) -> None:
        self._root = Path(root).expanduser()
        if payload:
            sys.path.insert(0, str(Path(payload).expanduser()))
        self._name = ""
        self._file: Plain | Compressed | None = None
        self._states: Any = None

    def open(self, name: str, size: int) -> Plain | Compressed:
        """Open the shard; raises Refusal if it does not have the plain size of the ledger."""
        if self._file is None or name != self._name:
            if self._file is not None:
                self._file.close()
            self._file, self._states = None, None
            path = self._root / name
            self._file = Compressed(path) if name.endswith(".rz") else Plain(path)
            self._name = name
        if self._file.size != size:
            raise Refusal(f"{name} is {self._file.size} bytes long there, its ledger says {size}")
        return self._file

    def pack(self, file: Plain | Compressed, offset: int, length: int) -> list[bytes]:
        """Return the compressed pieces of a range of the newest file, as parts to be written."""
        from remote.shared.codec.piece import pack
        from remote.shared.codec.states import find_states, header_bytes

        if self._states is None:
            self._states = find_states(file.read(0, header_bytes(file.read(0, 8))))
        plain = memoryview(file.read(offset, length))
        parts: list[Any] = []
        for begin, end, channels in self._states.cut(offset, offset + length):
            parts += pack(plain[begin - offset : end - offset], channels)
        return parts


def write(data: bytes) -> None:
    """Write all of `data` to stdout."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def digests(file: Plain | Compressed, length: int) -> bytes:
    """Return the digests of all blocks of the first `length` bytes, joined."""
    return b"".join(
        block_digest(file.read(offset, min(BLOCK_BYTES, length - offset))) for offset in range(0, length, BLOCK_BYTES)
    )


def answer(source: Source, request: dict[str, Any]) -> None:
    """Answer one request with one frame."""
    ticket, do = request["ticket"], request["do"]
    if do == "ping":
        write(FRAME.pack(PONG, ticket, 0))
        return
    parts: list[bytes] = []
    try:
        file = source.open(request["name"], request["size"])
        if do == "digests":
            kind, parts = DIGESTS, [digests(file, request["length"])]
        elif do == "packed":
            kind, parts = PACKED, source.pack(file, request["offset"], request["length"])
    except Refusal as refusal:
        kind, parts = REFUSED, [str(refusal).encode()]
    except ImportError as error:
        kind, parts = REFUSED, [f"compression is not possible there: {error}".encode()]
    except OSError as error:
        kind, parts = REFUSED, [f"{request['name']} cannot be read there: {error.strerror}".encode()]
    if do == "read" and not parts:
        write(FRAME.pack(DATA, ticket, request["length"]))
        file.send(request["offset"], request["length"])
        return
    write(FRAME.pack(kind, ticket, sum(len(part) for part in parts)))
    for part in parts:
        write(part)


def main() -> None:
    """Serve one connection until its stdin ends."""
    hello = json.loads(sys.stdin.buffer.readline())
    source = Source(hello["root"], hello["payload"])
    write(b"\n" + hello["nonce"].encode() + b"\n")
    for line in sys.stdin.buffer:
        answer(source, json.loads(line))


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(0)
