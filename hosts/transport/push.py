"""Pushes a folder to a host: resumable, verified by digest, and visible there only once it is whole.

Runs on the laptop, for assignments, datasets and plans. The far end is `hosts/transport/receiver.py`, started
from its source, so the host needs nothing of Roost before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosts.errors import ConnectionLostError, HostError, ProtocolError, UsageError
from hosts.transport import receiver
from hosts.transport.backend import Backend
from hosts.transport.call import LONGEST_MESSAGE
from hosts.transport.process import Process
from hosts.transport.receiver import digest_of
from hosts.transport.words import python_program

SOURCE = Path(receiver.__file__).read_text(encoding="ascii")
BLOCK_BYTES = 1 << 20
SILENCE_SECONDS = 120.0
"""The far end hashes the remains of an earlier push before it answers. 100 GB on a slow disk would take longer, but
pushed datasets and assignments have at most some GB."""

LINE_LIMIT_BYTES = 8 << 20
"""The size of the receiver's answer about some ten thousand files."""
NOISE_BYTES = 1 << 20
"""The most bytes that a login shell may print before the receiver speaks."""

OnBytes = Callable[[int, int], None]


@dataclass(frozen=True)
class Pushed:
    """The result of a push; no bytes were sent if the host had the folder already."""

    files: int
    total_bytes: int
    sent_bytes: int


@dataclass(frozen=True)
class _File:
    path: Path
    relative: str
    size: int
    sha256: str


def push(
    backend: Backend,
    local_dir: Path,
    remote_dir: str,
    on_bytes: OnBytes | None = None,
    *,
    owner: str = "",
    shared: bool = False,
) -> Pushed:
    """Make `remote_dir` (absolute, or with a leading `~`) on the host hold exactly the files of `local_dir`.

    `owner` names the JSON file that says whose folder it is. If the host's folder has the same file, or an unreadable
    one, it is a damaged copy and is replaced. With `shared`, files and folders get the modes of the login's umask
    instead of 0600 and 0700.
    Calls `on_bytes(done, total)` as bytes are sent. Raises HostError if `remote_dir` exists with other content or
    cannot be written, ConnectionLostError if the connection breaks; the next call then sends only what is missing.
    """
    files = _files(local_dir)
    total = sum(file.size for file in files)
    process = backend.open(python_program(backend.host, SOURCE, "-I", "-S"))
    try:
        return _push(
            _Dialogue(process), files, {"target": remote_dir, "owner": owner, "shared": shared}, total, on_bytes
        )
    except OSError as error:
        raise ConnectionLostError(
            f"The connection broke while {local_dir.name} was being pushed.",
            remedy="Run the command again: it continues where it stopped.",
        ) from error
    finally:
        process.close()


def _push(
    dialogue: _Dialogue, files: list[_File], where: dict[str, object], total: int, on_bytes: OnBytes | None
) -> Pushed:
    listing = [{"path": file.relative, "size": file.size, "sha256": file.sha256} for file in files]
    dialogue.say({**where, "files": listing})
    answer = dialogue.hear()
    if answer["state"] == "have":
        return Pushed(len(files), total, 0)
    prefixes = answer.get("prefixes")
    if not isinstance(prefixes, list) or len(prefixes) != len(files):
        raise ProtocolError("The receiver did not say what it has of the files.")
    starts = [_start(file, prefix) for file, prefix in zip(files, prefixes, strict=True)]
    dialogue.say({"starts": starts})
    done = sum(starts)
    for file, start in zip(files, starts, strict=True):
        for block in _blocks(file, start):
            dialogue.send(block)
            done += len(block)
            if on_bytes is not None:
                on_bytes(done, total)
    dialogue.hear()
    return Pushed(len(files), total, total - sum(starts))


def _blocks(file: _File, start: int) -> Iterator[bytes]:
    """Yield the file's bytes from `start` to the announced size; the far end's digest notices any change."""
    left = file.size - start
    with file.path.open("rb") as stream:
        stream.seek(start)
        while left:
            block = stream.read(min(BLOCK_BYTES, left))
            if not block:
                raise UsageError(f"{file.path} became shorter while it was being pushed.")
            left -= len(block)
            yield block


def _files(root: Path) -> list[_File]:
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder, so it cannot be pushed.")
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return [
        _File(
            path,
            path.relative_to(root).as_posix(),
            path.stat().st_size,
            digest_of(path.resolve(), path.stat().st_size).hexdigest(),
        )
        for path in paths
    ]


def _start(file: _File, prefix: Any) -> int:
    """Return the offset at which sending begins: after the host's bytes, if those are this file's first bytes."""
    size = prefix.get("size") if isinstance(prefix, dict) else None
    if not isinstance(size, int):
        raise ProtocolError("The receiver did not say what it has of the files.")
    kept = 0 < size <= file.size and digest_of(file.path.resolve(), size).hexdigest() == prefix.get("sha256")
    return size if kept else 0


class _Dialogue:
    """Exchanges JSON lines and raw bytes with the receiver; its refusals become errors."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._heard = bytearray()

    def say(self, message: dict[str, Any]) -> None:
        self.send(json.dumps(message).encode() + b"\n")

    def send(self, data: bytes) -> None:
        """Send raw bytes; if the receiver has hung up, raise its own last sentence."""
        try:
            self._process.write(data)
        except OSError:
            self.hear()
            raise

    def hear(self) -> dict[str, Any]:
        """Return the receiver's next line; a login shell may print lines before it."""
        noise = 0
        while True:
            line = self._line()
            noise += len(line) + 1
            try:
                message: dict[str, Any] = json.loads(line)
                state = message["state"]
            except (ValueError, KeyError, TypeError, RecursionError):
                if noise > NOISE_BYTES:
                    raise ProtocolError("The login shell printed over 1 MiB where the receiver should speak.") from None
                continue
            if state == "error":
                said, remedy = str(message.get("message")), str(message.get("remedy", ""))
                raise HostError(said[:LONGEST_MESSAGE], remedy=remedy[:LONGEST_MESSAGE])
            return message

    def _line(self) -> bytes:
        while (end := self._heard.find(b"\n")) < 0:
            if len(self._heard) > LINE_LIMIT_BYTES:
                raise ProtocolError(f"The receiver sent a line of over {LINE_LIMIT_BYTES >> 20} MiB.")
            chunk = self._process.read(1 << 16, SILENCE_SECONDS)
            if not chunk:
                raise ConnectionLostError(
                    f"The receiver ended early: {self._process.stderr_tail() or 'nothing on stderr'}.",
                    remedy="Run it again: it goes on where it stopped.",
                )
            self._heard += chunk
        line = bytes(self._heard[:end])
        del self._heard[: end + 1]
        return line
