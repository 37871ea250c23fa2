"""Reads a safetensors file as numpy views, without torch; a compressed container is unpacked into memory."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remote.shared.codec.container import SUFFIX as CONTAINER_SUFFIX
from remote.shared.codec.container import plain_pieces, read_index
from remote.shared.codec.piece import DamagedError
from remote.shared.codec.reader import CompressedShard
from remote.shared.errors import RecordError
from remote.shared.shard.header import Header, HeaderError, open_regular, parse, read

Buffer = bytes | bytearray | mmap.mmap

_NUMPY = {
    "I64": "<i8",
    "I32": "<i4",
    "F64": "<f8",
    "F32": "<f4",
    "BF16": "<u2",
    "F16": "<f2",
    "I16": "<i2",
    "U8": "u1",
    "I8": "i1",
    "BOOL": "?",
}


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file with a checked header; arrays are views into it (BF16 as bits, uint16)."""

    header: Header
    content: Buffer
    """The whole file."""

    @property
    def metadata(self) -> dict[str, str]:
        return self.header.metadata

    @classmethod
    def open(cls, path: Path, *, size: int | None = None) -> TensorFile:
        """Map `path`, or unpack it if it is a compressed container; raises RecordError, which says what is wrong.

        `size` is the number of plain bytes. A container that names another size is refused before it takes memory.
        """
        try:
            if path.suffix == CONTAINER_SUFFIX:
                return cls.parse(unpacked(path, size=size))
            with open_regular(path) as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise RecordError("the file is missing") from error
        except HeaderError as error:
            raise RecordError(f"the file {error}") from error
        except (OSError, ValueError) as error:
            raise RecordError(f"the file cannot be mapped: {error}") from error
        return cls.parse(content)

    @classmethod
    def parse(cls, content: Buffer) -> TensorFile:
        """Read the header of a file that is in memory; raises RecordError, which says what is wrong with the file."""
        try:
            return cls(parse(content, len(content)), content)
        except HeaderError as error:
            raise RecordError(f"the file {error}") from error

    def array(self, name: str) -> np.ndarray:
        """Return tensor `name` as a read-only view; raises RecordError if there is none, or its dtype is unknown."""
        span = self.header.tensors.get(name)
        if span is None:
            raise RecordError(f"it has no tensor {name!r} but {', '.join(self.header.tensors) or 'none':.200}")
        if span.dtype not in _NUMPY:
            raise RecordError(f"its tensor {name!r} is of dtype {span.dtype:.40}, which Roost cannot read")
        flat = np.frombuffer(self.content, _NUMPY[span.dtype], math.prod(span.shape), span.begin)
        return flat.reshape(span.shape)


def read_metadata(path: Path) -> dict[str, str]:
    """Return a shard's own metadata, reading or unpacking only the beginning; raises RecordError."""
    try:
        if path.suffix == CONTAINER_SUFFIX:
            with CompressedShard(path) as shard:
                return read(shard, size=shard.size).metadata
        with open_regular(path) as file:
            return read(file).metadata
    except HeaderError as error:
        raise RecordError(f"the file {error}") from error
    except (OSError, DamagedError) as error:
        raise RecordError(f"its safetensors header cannot be read: {error}") from error


def unpacked(path: Path, *, size: int | None = None) -> bytearray:
    """Return the plain bytes of a compressed shard; raises RecordError if it is damaged or has another `size`.

    Needs memory for the size in the container's index, which `container.read_index` limits, and for one piece.
    """
    try:
        with open_regular(path) as packed:
            index = read_index(packed)
            if size is not None and index.size != size:
                raise RecordError(f"it unpacks to {index.size} bytes; the ledger says {size}")
            plain = bytearray()
            for piece in plain_pieces(packed):
                plain += piece
    except (DamagedError, HeaderError) as error:
        raise RecordError(f"it cannot be unpacked: {error}") from error
    return plain
