"""Reads the inputs that `--input` names: files and folders, on this machine or in a bucket, plain or compressed.

Called by `remote.data.prepare`. Of a folder, all files below it are read; of a dataset that `datasets` saved, the files
in its own list. The files that are not read are reported. A file that is compressed or in a bucket is first written to
the spool as plain bytes, so that it can be read in parts.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import fsspec.core
import xxhash

from remote.data.answered import identity_at
from remote.shared.errors import HostError, UsageError
from remote.shared.files import written_aside
from remote.shared.messages.dataset import SourceForm
from remote.shared.redact import without_credentials

FORMS: dict[str, SourceForm] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
PROMPT_FORMS: dict[str, SourceForm] = {**FORMS, ".txt": "text"}
"""Further forms for prompts: each line of a text file is a prompt."""
COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
_BLOCK = 4 << 20
_OF_DATASETS = ("state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json")


@dataclass(frozen=True)
class InputFile:
    """One file to read."""

    path: str
    """The name in messages and in the manifest: a local path or an address."""
    name: str
    """The last part of `path`."""
    form: SourceForm
    compression: str
    """One of COMPRESSED, or ""."""
    remote: bool
    size_bytes: int

    @property
    def shown(self) -> str:
        """The path without a URL's user, password and signature, which are secrets, for messages and the manifest."""
        return without_credentials(self.path)


@dataclass
class Found:
    """The files of all inputs."""

    files: list[InputFile] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Files in folders that are not read, as `FOLDER/NAME`, with the reason if the reason is not the name."""


def expand(inputs: list[str], forms: dict[str, SourceForm] = FORMS) -> Found:
    """Return the files that `inputs` name, with folders replaced by their files; raise UsageError or HostError."""
    found = Found()
    for text in inputs:
        with _reached(text):
            _add(found, text, forms)
    if not found.files and not inputs:
        raise UsageError("No input was given.", remedy="Name files or folders with --input.")
    return found


def _add(found: Found, text: str, forms: dict[str, SourceForm]) -> None:
    remote, shown = "://" in text, without_credentials(text)
    system, root = fsspec.core.url_to_fs(text if remote else str(Path(text).expanduser().absolute()))
    prefix = text.partition("://")[0] + "://" if remote else ""
    if not remote and identity_at(Path(root)) is not None:
        found.files.append(InputFile(root, Path(root).name, "answers", "", False, 0))
    elif system.isdir(root):
        before = len(found.files)
        _add_folder(found, system, root.rstrip("/"), prefix, forms)
        if len(found.files) == before:
            raise UsageError(f"The input folder {shown} has no {', '.join(forms)} file, compressed or not.")
    elif system.isfile(root):
        file = _input_file(system, root, prefix, forms)
        if file is None:
            raise UsageError(
                f"The input {shown} is none of {', '.join(forms)}, alone or followed by one of {', '.join(COMPRESSED)}."
            )
        if file.size_bytes == 0:
            raise UsageError(f"The input {shown} is empty.")
        found.files.append(file)
    else:
        raise UsageError(f"There is no input {shown}.")


def _add_folder(found: Found, system: Any, root: str, prefix: str, forms: dict[str, SourceForm]) -> None:
    names = sorted(system.find(root))
    read, saved = _of_saved_datasets(system, root, names, prefix)
    for name in names:
        file = None if _is_hidden(name[len(root) + 1 :]) else _input_file(system, name, prefix, forms)
        in_saved = any(name.startswith(f"{folder}/") for folder in saved)
        if file is not None and name in read:
            found.files.append(file)
        elif Path(name).name in _OF_DATASETS:
            if not in_saved:
                found.unread.append(without_credentials(f"{prefix}{name}"))
        elif file is None or in_saved:
            found.unread.append(without_credentials(f"{prefix}{name}"))
        elif file.size_bytes == 0:
            found.unread.append(without_credentials(f"{prefix}{name} (empty)"))
        else:
            found.files.append(file)


def _of_saved_datasets(system: Any, root: str, names: list[str], prefix: str) -> tuple[set[str], list[str]]:
    """Return the data files of datasets that `save_to_disk` wrote below `root`, and the folders of these datasets."""
    read: set[str] = set()
    folders: list[str] = []
    for name in names:
        folder, _, last = name.rpartition("/")
        if last == "dataset_dict.json":
            splits = _json_of(system, name).get("splits", [])
            named = ", ".join(f"--input {prefix}{folder}/{split}" for split in splits)
            raise UsageError(
                f"The input {prefix}{folder} is a dataset of several splits ({', '.join(map(str, splits))}).",
                remedy=f"Name the split to read: {named}.",
            )
        if last == "state.json":
            files = _json_of(system, name).get("_data_files")
            if isinstance(files, list):
                folders.append(folder)
                read |= {f"{folder}/{one['filename']}" for one in files}
    missing = sorted(read - set(names))
    if missing:
        raise UsageError(f"The dataset in {prefix}{root} names the file {missing[0]}, which does not exist.")
    return read, folders


def _json_of(system: Any, name: str) -> dict[str, Any]:
    try:
        value = json.loads(system.cat_file(name))
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}.") from error
    return value if isinstance(value, dict) else {}


def _is_hidden(inside: str) -> bool:
    return any(part.startswith((".", "_")) for part in inside.split("/"))


def _input_file(system: Any, name: str, prefix: str, forms: dict[str, SourceForm]) -> InputFile | None:
    """Return the file with its form and compression; None if files of this name are not read."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSED else ""
    form = forms.get(suffixes[-1]) if suffixes else None
    if form is None:
        return None
    return InputFile(f"{prefix}{name}", Path(name).name, form, compression, bool(prefix), int(system.size(name) or 0))


@contextmanager
def _reached(text: str) -> Iterator[None]:
    """Turn errors of a bucket or a disk into one sentence."""
    try:
        yield
    except (UsageError, HostError):
        raise
    except (ImportError, ValueError) as error:
        raise UsageError(f"The input {without_credentials(text)} cannot be reached: {_first_line(error)}.") from error
    except Exception as error:
        raise HostError(f"The input {without_credentials(text)} could not be read: {_first_line(error)}.") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return without_credentials(lines[0] if lines else type(error).__name__).rstrip(".")


@dataclass(frozen=True)
class Plain:
    """A file on this machine with an input's plain bytes."""

    path: Path
    xxh3: str
    """xxh3-128 of the input's own bytes, 32 hex digits."""
    size_bytes: int


def make_plain(file: InputFile, spool: Path) -> Plain:
    """Return the file with the plain bytes of `file`, and the digest of `file`; raise HostError or UsageError."""
    with _reached(file.path):
        if not file.remote and not file.compression:
            return Plain(Path(file.path), file_digest(Path(file.path)), file.size_bytes)
        local = _fetched(file, spool) if file.remote else Path(file.path)
    digest, size = file_digest(local), local.stat().st_size
    plain = spool / f"source-{digest}{file.form}"
    if not plain.exists():
        if file.compression:
            _decompress(file, local, plain)
        else:
            local.replace(plain)
    if file.remote:
        local.unlink(missing_ok=True)
    return Plain(plain, digest, size)


def _fetched(file: InputFile, spool: Path) -> Path:
    target = spool / f"fetched-{xxhash.xxh3_128_hexdigest(file.path.encode())}"
    with (
        fsspec.open(file.path, "rb") as source,
        written_aside(target, durable=False) as aside,
        aside.open("wb") as out,
    ):
        shutil.copyfileobj(source, out, _BLOCK)
    return target


def _decompress(file: InputFile, source: Path, target: Path) -> None:
    try:
        with written_aside(target, durable=False) as aside, aside.open("wb") as out:
            for block in _OPENERS[file.compression](source):
                out.write(block)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise _damaged(file, error) from error
    except OSError as error:
        # bz2 reports an invalid stream as an OSError without a number; the OSError of a full disk has a number.
        if error.errno is not None:
            raise
        raise _damaged(file, error) from error


def _damaged(file: InputFile, error: Exception) -> UsageError:
    return UsageError(
        f"The input {file.shown} cannot be decompressed: {_first_line(error)}.",
        remedy="The file is damaged: fetch it again.",
    )


def _blocks(opener: Callable[[Path], Any], path: Path) -> Iterator[bytes]:
    with opener(path) as stream:
        while block := stream.read(_BLOCK):
            yield block


def _zstandard(path: Path) -> Iterator[bytes]:
    """Decompress frame by frame, because the library's own reader accepts an incomplete file."""
    import zstandard

    frame: Any = zstandard.ZstdDecompressor().decompressobj()
    begun = False
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            while block:
                begun = True
                try:
                    yield frame.decompress(block)
                except zstandard.ZstdError as error:
                    raise EOFError(str(error)) from error
                block = frame.unused_data if frame.eof else b""
                if frame.eof:
                    frame, begun = zstandard.ZstdDecompressor().decompressobj(), False
    if begun:
        raise EOFError("the file is incomplete")


_OPENERS: dict[str, Callable[[Path], Iterable[bytes]]] = {
    ".gz": partial(_blocks, gzip.open),
    ".bz2": partial(_blocks, bz2.open),
    ".xz": partial(_blocks, lzma.open),
    ".zst": _zstandard,
}


def file_digest(path: Path) -> str:
    """Return the xxh3-128 of a file's bytes, 32 hex digits."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
