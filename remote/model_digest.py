"""What a model is, as one digest over its files: 600 GB in seconds, because weights are sampled and not read.

Runs on a host, for a plan and at every start of a server: a run takes no records from a server that loaded other files
than it was planned for. Counts: the configuration, the tokenizer's files, the chat template, and of every weight file
its name, its size, its safetensors header and blocks spread over it. A file's part is cached in the workdir by path,
size, and the times of the last change to its bytes and to the file; nobody but root can set back the latter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import xxhash

from remote.shared.errors import HostError
from remote.shared.files import write_whole
from remote.shared.paths import Workdir
from remote.shared.supervised.pools import Pool

_SMALL = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
"""Configuration, index, tokenizer and chat template, which are read completely."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
BLOCKS = 16
BLOCK_BYTES = 1 << 18
"""16 blocks of 256 KiB: 4 MiB of every weight file, whose first block holds its header and whose last one its end."""
_WHOLE_BYTES = 64 << 20
"""A small file that is larger than this is sampled as well."""
_THREADS = 8


def model_digest(folder: Path, workdir: Workdir) -> str:
    """Return 32 hex digits over the model in `folder`; raise HostError if one of its files cannot be read."""
    cache = _Cache(workdir.model_digests)
    files = sorted(_files(folder), key=lambda path: path.name)
    try:
        with Pool(_THREADS, "digest") as pool:
            parts = list(pool.map(cache.part, files))
    except OSError as error:
        raise HostError(
            f"The model's file {error.filename} could not be read: {error.strerror}.",
            remedy="Mount or copy the model there again.",
        ) from error
    cache.keep()
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


def _files(folder: Path) -> Iterator[Path]:
    found = {path for pattern in (*_SMALL, *_WEIGHTS) for path in folder.glob(pattern) if path.is_file()}
    yield from found


class _Cache:
    """Keeps the parts of files, for files that have not changed since they were read. Used by several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._used: dict[str, str] = {}
        try:
            self._known = {str(key): str(part) for key, part in json.loads(path.read_bytes()).items()}
        except (OSError, ValueError, AttributeError):
            self._known = {}

    def part(self, path: Path) -> str:
        """Return one file's part of the digest: `NAME SIZE XXH3`."""
        status = path.stat()
        key = f"{path.resolve()} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        part = self._known.get(key) or f"{path.name} {status.st_size} {_content(path, status.st_size)}"
        self._used[key] = part
        return part

    def keep(self) -> None:
        """Write the parts of the files that were read, in addition to the parts of other models' files."""
        if self._used.items() <= self._known.items():
            return
        try:
            write_whole(self._path, json.dumps({**self._known, **self._used}).encode())
        except OSError:
            return  # the next plan reads the blocks again


def _content(path: Path, size: int) -> str:
    digest = xxhash.xxh3_128()
    whole = not any(path.match(pattern) for pattern in _WEIGHTS) and size <= _WHOLE_BYTES
    with path.open("rb", buffering=0) as file:
        if whole or size <= BLOCKS * BLOCK_BYTES:
            digest.update(file.read())
            return digest.hexdigest()
        if path.suffix == ".safetensors":
            length = min(int.from_bytes(file.read(8), "little"), size - 8)
            digest.update(file.read(min(length, _WHOLE_BYTES)))
        for number in range(BLOCKS):
            file.seek((size - BLOCK_BYTES) * number // (BLOCKS - 1))
            digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()
