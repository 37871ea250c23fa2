"""The header of a safetensors file: the only module that reads and writes headers. Standard library only.

A header may be hostile (from a server that was taken over, or a foreign file), so everything in it is checked: its
length, the exact type of every value, and that the tensors fill the file's data without a gap or an overlap. Every
fault is a `HeaderError`, whose text completes a sentence that begins with the file.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of one value for each dtype, by its name in safetensors."""
LONGEST = 100 << 20
"""The longest header (bytes) that the safetensors format allows; checkpoints need up to some megabytes."""
LONGEST_OF_A_SHARD = 1 << 20
"""The longest header (bytes) that a dump or a shard may have; capture writes a few kilobytes."""
_MOST_DIMENSIONS = 8
_LARGEST = 1 << 62


class Readable(Protocol):
    """An open file, or an object that reads like one."""

    def read(self, size: int = -1, /) -> bytes | None:
        """Read at most `size` bytes."""

    def fileno(self) -> int:
        """The descriptor."""


class HeaderError(ValueError):
    """A fault in a header; the text completes "The file …"."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written; `dtype` is safetensors' name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Span:
    """A tensor's place in a file: bytes [begin, end) from the file's start."""

    dtype: str
    """safetensors' name; an unknown name is kept."""
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """The checked content of a header. The spans lie within the file and do not overlap."""

    tensors: dict[str, Span]
    metadata: dict[str, str]
    size: int
    """Bytes of the whole file."""


def open_regular(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """Open a regular file for unbuffered reading; raises HeaderError for a pipe or a device, OSError like `open`.

    Otherwise a pipe with a shard's name would block its reader for ever.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise HeaderError("is not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def read(file: Readable, *, size: int | None = None, longest: int = LONGEST_OF_A_SHARD) -> Header:
    """Read and check the header of an open file from its start; raises HeaderError.

    `size` is the number of bytes of the whole file, if `file` is not a file of the operating system.
    """
    size = os.fstat(file.fileno()).st_size if size is None else size
    head = _exactly(file, 8)
    return parse(head + _exactly(file, length_of(head, longest)), size, longest=longest)


def parse(content: Any, size: int | None, *, longest: int = LONGEST_OF_A_SHARD) -> Header:
    """Read and check the header at the start of `content` (bytes, bytearray or mmap); raises HeaderError.

    `size` is the number of bytes of the whole file; if it is None, the header's own figure is taken.
    """
    length = length_of(content[:8], longest)
    base = 8 + length
    if len(content) < base or (size is not None and size < base):
        raise HeaderError(f"is cut short within its header of {length} bytes")
    entries = _entries(bytes(content[8:base]))
    metadata = _metadata(entries.pop("__metadata__", {}))
    spans = {name: _span(name, entry, base) for name, entry in entries.items()}
    end = _filled(spans, base)
    if size is not None and end != size:
        raise HeaderError(f"has {size} bytes, but its header says {end}")
    return Header(spans, metadata, end)


def length_of(head: bytes, longest: int) -> int:
    """Return the length of the header's JSON, from the file's first 8 bytes; raises HeaderError above `longest`."""
    if len(head) < 8:
        raise HeaderError(f"has {len(head)} bytes, too few for a safetensors file")
    length = int.from_bytes(head, "little")
    if not 2 <= length <= longest:
        raise HeaderError(f"begins with a header of {length} bytes; 2 to {longest} are possible")
    return length


def write(
    tensors: Sequence[TensorSpec], metadata: Mapping[str, str] | None = None, *, area: int | None = None
) -> bytes:
    """Return the bytes before the data: 8 bytes of length, then JSON padded to a multiple of 8, or to `area` bytes.

    Raises ValueError if the header does not fit into `area`.
    """
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size_bytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    room = len(text) + -len(text) % 8 if area is None else area - 8
    if len(text) > room:
        raise ValueError(f"the header takes {len(text)} bytes, but its area holds {room}")
    return room.to_bytes(8, "little") + text.ljust(room)


def _exactly(file: Readable, count: int) -> bytes:
    """Read `count` bytes, or fewer at the end of the file."""
    found = bytearray()
    while len(found) < count:
        part = file.read(count - len(found))
        if not part:
            break
        found += part
    return bytes(found)


def _entries(text: bytes) -> dict[str, Any]:
    try:
        entries = _DECODER.decode(text.decode("utf-8"))
    except HeaderError:
        raise
    except (ValueError, RecursionError) as error:
        raise HeaderError("has a header that is not JSON") from error
    if not isinstance(entries, dict):
        raise HeaderError("has a header that is not a JSON object")
    return entries


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; raises HeaderError for a repeated name, because readers disagree about it."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise HeaderError("has a header that names something twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once)


def _metadata(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise HeaderError("has metadata that is not text")
    return found


def _span(name: str, entry: Any, base: int) -> Span:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise HeaderError(f"does not describe its tensor {name!r:.80} by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise HeaderError(f"has a dtype that is not a text for its tensor {name!r:.80}: {dtype!r:.80}")
    if not _are_sizes(shape) or len(shape) > _MOST_DIMENSIONS:
        raise HeaderError(f"has no possible shape for its tensor {name!r:.80}: {shape!r:.80}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise HeaderError(f"has no possible data_offsets for its tensor {name!r:.80}: {offsets!r:.80}")
    begin, end = offsets
    if dtype in ITEM_BYTES and end - begin != ITEM_BYTES[dtype] * math.prod(shape):
        raise HeaderError(f"has {end - begin} bytes for its tensor {name!r:.80}, which is {dtype:.20} {shape!r:.80}")
    return Span(dtype, tuple(shape), base + begin, base + end)


def _are_sizes(values: Any) -> bool:
    """Return whether this is a list of non-negative integers; True and 3.0 do not count."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= _LARGEST for value in values)


def _filled(spans: Mapping[str, Span], base: int) -> int:
    """Return the end of the last tensor; raises HeaderError if the tensors leave a gap or overlap."""
    end = base
    for name, span in sorted(spans.items(), key=lambda item: (item[1].begin, item[1].end)):
        if span.begin != end:
            what = "overlaps the tensor before it" if span.begin < end else "does not follow the tensor before it"
            raise HeaderError(f"has a tensor {name!r:.80} that {what}")
        end = span.end
    return end
