"""Packs a shard into a container and unpacks it, one piece in memory at a time; the package describes the format."""

from __future__ import annotations

import json
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import xxhash

from remote.shared import foreign
from remote.shared.codec.piece import HEADER, Bytes, DamagedError, pack, payload_bytes, unpack
from remote.shared.codec.states import PIECE_BYTES, StatesRange, find_states, header_bytes
from remote.shared.errors import RecordError
from remote.shared.files import FILE_MODE, SHARED_MODE, written_aside
from remote.shared.paths import COMPRESSED_SUFFIX

MAGIC = b"ROOSTRZ1"
SUFFIX = COMPRESSED_SUFFIX
_TAIL = struct.Struct("<I8s")
_MOST_GROWTH = 64
"""The largest number of plain bytes for a byte of the container, in addition to one piece. Half of the bytes of any
states are not compressed, so no container of states comes near this limit. The limit keeps a small file from unpacking
to gigabytes.
"""
_MOST_OVERHEAD = 1 << 20
"""zstd adds far less than this to bytes that cannot be compressed."""


@dataclass(frozen=True)
class Index:
    """The index of a container: its plain size, its digest and the places of its pieces."""

    size: int
    """Plain bytes."""
    xxh3: str
    """xxh3-128 of the plain bytes, 32 hex digits."""
    pieces: list[tuple[int, int]]
    """Plain offset and file offset of each piece, rising."""

    def length(self, number: int) -> int:
        """Return the number of plain bytes in piece `number`."""
        following = self.pieces[number + 1][0] if number + 1 < len(self.pieces) else self.size
        return following - self.pieces[number][0]

    def piece_at(self, offset: int) -> int:
        """Return the number of the piece that holds the plain byte `offset`."""
        return bisect_right(self.pieces, (offset, 1 << 62)) - 1


def states_in(source: BinaryIO) -> StatesRange:
    """Return the place of the states in an open shard, from its header. Moves the stream's position."""
    source.seek(0)
    first = source.read(8)
    return find_states(first + source.read(header_bytes(first) - len(first)))


def pack_file(source: Path, target: Path, *, durable: bool = True, mode: int = FILE_MODE) -> Index:
    """Write the container of `source` to `target`, atomically and (with `durable`) durably. Raises OSError."""
    with (
        source.open("rb", buffering=0) as plain,
        written_aside(target, durable=durable, mode=mode) as aside,
        aside.open("r+b") as packed,
    ):
        states = states_in(plain)
        size = os.fstat(plain.fileno()).st_size
        digest = xxhash.xxh3_128()
        pieces = []
        packed.write(MAGIC)
        for begin, end, channels in states.cut(0, size):
            block = os.pread(plain.fileno(), end - begin, begin)
            digest.update(block)
            pieces.append((begin, packed.tell()))
            packed.writelines(pack(block, channels))
        index = Index(size, digest.hexdigest(), pieces)
        text = json.dumps({"size": index.size, "xxh3": index.xxh3, "pieces": pieces}).encode()
        packed.write(text + _TAIL.pack(len(text), MAGIC))
    return index


def read_index(stream: BinaryIO) -> Index:
    """Return the index of an open container; raises DamagedError if it is no container or is damaged.

    The pieces of a valid index follow each other without a gap or an overlap, and none is larger than `PIECE_BYTES`.
    Unpacking therefore needs memory for a single piece and never writes more than `size` bytes.
    """
    try:
        stream.seek(-_TAIL.size, os.SEEK_END)
        length, magic = _TAIL.unpack(stream.read(_TAIL.size))
        if magic != MAGIC:
            raise DamagedError("it does not end as a container does")
        stream.seek(-_TAIL.size - length, os.SEEK_END)
        end = stream.tell()
        found = foreign.loads(stream.read(length))
        index = Index(found["size"], found["xxh3"], [(begin, at) for begin, at in found["pieces"]])
        if not isinstance(index.xxh3, str) or not _can_be(index, end):
            raise DamagedError("its index contradicts itself")
    except (OSError, ValueError, LookupError, TypeError, struct.error) as error:
        raise error if isinstance(error, DamagedError) else DamagedError("it has no index") from error
    return index


def _can_be(index: Index, end: int) -> bool:
    """Return whether the pieces cover [0, size) in order and lie, in order, before the index at byte `end`."""
    numbers = [index.size, *(number for piece in index.pieces for number in piece)]
    if not all(type(number) is int for number in numbers) or bool(index.pieces) != (index.size > 0):
        return False
    places = [at for _, at in index.pieces]
    if index.size > PIECE_BYTES + _MOST_GROWTH * end:
        return False
    return (
        index.pieces[:1] in ([], [(0, places[0] if places else 0)])
        and all(0 < index.length(number) <= PIECE_BYTES for number in range(len(index.pieces)))
        and all(at >= 0 and at + HEADER.size <= later for at, later in pairwise([*places, end]))
    )


def read_piece(stream: BinaryIO, index: Index, number: int) -> Bytes:
    """Return the plain bytes of one piece; raises DamagedError if the piece disagrees with the index."""
    at, wanted = index.pieces[number][1], index.length(number)
    stream.seek(at)
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size:
        raise DamagedError("a piece is cut short")
    plain, channels, packed = HEADER.unpack(head)
    if plain != wanted or channels > plain or packed > plain + _MOST_OVERHEAD:
        raise DamagedError(f"a piece says that it has {plain} bytes, but the index says {wanted}")
    return unpack(plain, channels, packed, stream.read(payload_bytes(plain, channels, packed)))


def plain_pieces(stream: BinaryIO) -> Iterator[Bytes]:
    """Yield the plain bytes of a container, piece by piece; raises DamagedError."""
    index = read_index(stream)
    for number in range(len(index.pieces)):
        yield read_piece(stream, index, number)


def unpack_file(source: Path, target: Path) -> Index:
    """Write the plain bytes of the container `source` to `target`, whole, fsynced and verified by their digest.

    The plain shard gets the container's permissions, as far as the umask allows. Raises RecordError if the container is
    damaged, OSError if the disk fails.
    """
    digest = xxhash.xxh3_128()
    try:
        mode = source.stat().st_mode & SHARED_MODE
        with source.open("rb") as packed, written_aside(target, mode=mode) as aside, aside.open("r+b") as plain:
            index = read_index(packed)
            for piece in plain_pieces(packed):
                digest.update(piece)
                plain.write(piece)
            if digest.hexdigest() != index.xxh3:
                raise DamagedError("its bytes do not have the digest in its index")
    except DamagedError as error:
        raise RecordError(f"{source} cannot be unpacked: {error}.") from error
    return index
