"""The far end of a pull: sends byte ranges of shards as they are asked for, and the digests of their blocks.

Runs on the source host as `python -I -S -c SOURCE` (`stream.py` hands over this very text), so it needs neither a
payload nor a package, and reads only. One JSON line a request on stdin, first {"root", "nonce"}; then any number of

    {"do": "ping", "ticket"}                                          -> PONG
    {"do": "read", "ticket", "name", "size", "offset", "length"}      -> DATA and `length` raw bytes
    {"do": "digests", "ticket", "name", "size", "length"}             -> DIGESTS of the first blocks

`size` is what the ledger says; a file of another size is REFUSED with a sentence. Requests are answered in order, so
the asking side keeps several in flight and the wire never waits for a round trip.
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
PONG, DATA, DIGESTS, REFUSED = range(4)

BLOCK_BYTES = 4 << 20
"""What is asked for at once, and compared at once where an earlier pull left something."""
DIGEST_BYTES = 16


def block_digest(block: bytes | memoryview) -> bytes:
    """Blake2b of one block: fast without CPU support, and in every Python."""
    return hashlib.blake2b(block, digest_size=DIGEST_BYTES).digest()


class Refusal(Exception):
    """A sentence for the person who pulls."""


class Source:
    """The folder that is read from; keeps the newest file open, since ranges of one file follow each other."""

    def __init__(self, root: str) -> None:
        self._root = Path(root).expanduser()
        self._name = ""
        self._descriptor = -1

    def open(self, name: str, size: int) -> int:
        """A descriptor of the file, which must have the size that the ledger says."""
        if name != self._name:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._name, self._descriptor = "", -1
            self._descriptor = os.open(self._root / name, os.O_RDONLY)
            self._name = name
        found = os.fstat(self._descriptor).st_size
        if found != size:
            raise Refusal(f"{name} is {found} bytes long there, its ledger says {size}")
        return self._descriptor


def write(data: bytes) -> None:
    """All of `data` to stdout."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def send_range(descriptor: int, offset: int, length: int) -> None:
    """Copy a range to stdout inside the kernel; ends the program where the file has become shorter."""
    while length:
        sent = os.sendfile(1, descriptor, offset, min(length, 1 << 20))
        if not sent:
            sys.exit(3)
        offset += sent
        length -= sent


def digests(descriptor: int, length: int) -> bytes:
    """The digests of all blocks of the first `length` bytes, one after the other."""
    return b"".join(
        block_digest(os.pread(descriptor, min(BLOCK_BYTES, length - offset), offset))
        for offset in range(0, length, BLOCK_BYTES)
    )


def answer(source: Source, request: dict[str, Any]) -> None:
    """One frame for one request."""
    ticket = request["ticket"]
    try:
        if request["do"] == "ping":
            write(FRAME.pack(PONG, ticket, 0))
            return
        descriptor = source.open(request["name"], request["size"])
        if request["do"] == "digests":
            payload = digests(descriptor, request["length"])
            write(FRAME.pack(DIGESTS, ticket, len(payload)) + payload)
            return
    except Refusal as refusal:
        reason = str(refusal)
    except OSError as error:
        reason = f"{request['name']} cannot be read there: {error.strerror}"
    else:
        write(FRAME.pack(DATA, ticket, request["length"]))
        send_range(descriptor, request["offset"], request["length"])
        return
    payload = reason.encode()
    write(FRAME.pack(REFUSED, ticket, len(payload)) + payload)


def main() -> None:
    """Serve one connection until its stdin ends."""
    hello = json.loads(sys.stdin.buffer.readline())
    source = Source(hello["root"])
    write(b"\n" + hello["nonce"].encode() + b"\n")
    for line in sys.stdin.buffer:
        answer(source, json.loads(line))


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(0)
