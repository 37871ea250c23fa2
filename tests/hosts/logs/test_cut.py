"""Following over a connection that is cut after any byte: the received bytes equal the written bytes."""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import pytest

from hosts.commands import logs as logging
from hosts.errors import HostError, RoostError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host, Inventory
from hosts.transport.backend import Backend
from hosts.transport.local import LocalBackend
from hosts.transport.process import Process
from remote.shared.messages.logs import LogItem, LogLines, LogSource, LogsRequest, LogsResult
from remote.shared.paths import Workdir

DEADLINE_SECONDS = 120.0
FIRST_LIFETIME_BYTES = 4000
"""Enough for a first call to say where the log begins; one that breaks before is an error and no reconnect."""
LONGEST_LIFETIME_BYTES = 800_000
"""Some must outlive one batch of lines, which is what a cut costs: 64 KiB, six times that where all is escapes."""


class CutProcess(Process):
    """A real process whose connection breaks after `lifetime` bytes of its answer."""

    def __init__(self, inner: Process, lifetime: int) -> None:
        super().__init__()
        self._inner, self._left = inner, lifetime

    def write(self, data: bytes) -> None:
        self._inner.write(data)

    def close_stdin(self) -> None:
        self._inner.close_stdin()

    def read(self, size: int, timeout: float | None) -> bytes:
        if self._left <= 0:
            self._inner.close()
            raise ConnectionResetError("cut")
        chunk = self._inner.read(min(size, self._left), timeout)
        self._left -= len(chunk)
        return chunk

    def wait(self, timeout: float) -> int:
        raise TimeoutError("a cut connection tells no exit status")

    def close(self) -> None:
        self._inner.close()


class CutBackend(LocalBackend):
    """This machine behind connections of random, short lives."""

    def __init__(self, host: Host, pick: random.Random) -> None:
        super().__init__(host)
        self._pick = pick
        self.opened = 0
        self._process: CutProcess | None = None

    def open(self, argv: list[str]) -> Process:
        self.opened += 1
        lifetime = FIRST_LIFETIME_BYTES if self.opened == 1 else self._pick.randrange(0, LONGEST_LIFETIME_BYTES)
        self._process = CutProcess(super().open(argv), lifetime)
        return self._process

    def cut_now(self) -> None:
        """End the connection that is open."""
        if self._process is not None:
            self._process.close()


class CutFleet(Fleet):
    """A fleet of one such host."""

    def __init__(self, host: Host, pick: random.Random) -> None:
        super().__init__(Inventory(path=Path("inventory.yaml"), hosts={}, local=host), [host])
        self.cut = CutBackend(host, pick)

    def backend(self, host: Host) -> Backend:
        return self.cut


def write_in_pieces(workdir: Path, content: bytes, pick: random.Random) -> None:
    """Append `content` in pieces that end anywhere; at some line ends the server starts again with a new log."""
    paths, start, at = Workdir(workdir).server("main"), 1, 0
    while at < len(content):
        piece = content[at : at + pick.randrange(1, 20_000)]
        at += len(piece)
        with paths.log(start).open("ab") as log:
            log.write(piece)
        if piece.endswith(b"\n"):
            start += 1


def read_until(
    fleet: CutFleet, size: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[bytes, list[RoostError], list[Outcome[LogsResult]]]:
    """Follow until `size` bytes have arrived, or until the deadline."""
    monkeypatch.setattr(logging, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(logging, "LONGEST_PAUSE_SECONDS", 0.0)
    stopped, arrived, lost = threading.Event(), bytearray(), list[RoostError]()

    def give_up() -> None:
        stopped.set()
        fleet.cut.cut_now()

    timer = threading.Timer(DEADLINE_SECONDS, give_up)
    timer.start()

    def take(host: Host, item: LogItem) -> None:
        if isinstance(item, LogLines):
            arrived.extend("".join(f"{line}\n" for line in item.lines).encode())
        if len(arrived) >= size:
            stopped.set()
            raise HostError("enough")

    request = LogsRequest(sources=[LogSource(name="main")], lines=None, follow=True)
    outcomes = logging.logs(fleet, request, take, lambda host, error, pause: lost.append(error), stopped)
    timer.cancel()
    return bytes(arrived), lost, outcomes


@pytest.mark.parametrize("seed", range(1))
def test_every_byte_arrives_once_and_in_order_at_any_cut(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = random.Random(seed)
    alphabet = "é雪\x1b\t"
    text = "".join(f"{number} {alphabet[number % 4] * pick.randrange(300)}\n" for number in range(4000))
    content = text.encode()
    Workdir(tmp_path).server("main").logs.mkdir(parents=True)
    host = Host(name="here", connection="local", python=sys.executable, workdir=str(tmp_path))
    fleet = CutFleet(host, pick)
    writer = threading.Thread(target=write_in_pieces, args=(tmp_path, content, random.Random(seed)))
    writer.start()
    arrived, lost, _ = read_until(fleet, len(content), monkeypatch)
    writer.join()
    assert arrived == content
    assert len(lost) == fleet.cut.opened - 1
    assert len(lost) >= 3, "the connection was really cut"


def test_a_first_call_that_breaks_is_an_error_and_no_reconnect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(name="here", connection="local", python=str(tmp_path / "no-python"), workdir=str(tmp_path))
    [outcome] = read_until(CutFleet(host, random.Random(1)), 1, monkeypatch)[2]
    assert outcome.error is not None
    assert "could not be started" in outcome.error.message
