"""A command that stays attached to a run moves its work: `extract`, `pull --follow` and `status --watch`, as typed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hosts.commands import extract as extraction
from hosts.commands.moves import moved
from remote.shared import ranges
from tests.fleet.extraction.conftest import LENGTHS, RUN, Site
from tests.fleet.extraction.test_extract import finished
from tests.remote.extract.standin_process import until

EVERY = set(range(len(LENGTHS)))
TOOK_OVER = re.compile(r"a: took over [\d,]+ records \([\d,]+ tokens\) from b, which would have ended later")
PATIENCE_SECONDS = 180.0


@pytest.fixture
def uneven(site: Site) -> Site:
    """Two hosts that serve, of which `b` is very much slower."""
    site.serve("a", delay=0.01)
    site.serve("b", delay=0.8, high_water=30_000)
    return site


def inv(site: Site, *words: str) -> list[str]:
    """A typed line about all hosts of the run."""
    program = str(Path(sys.executable).parent / "inv")
    return [program, *words, "--hosts", "all", "--run", RUN, "--inventory", str(site.inventory)]


@contextmanager
def typed(site: Site, clone: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command under way, whose output is piped."""
    process = subprocess.Popen(
        inv(site, *words), cwd=clone, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def made_once(site: Site) -> None:
    """Every record was asked for once, of one host, and that host's ledger has it."""
    seen = {name: {int(index) for index in server.seen()} for name, server in site.servers.items()}
    assert {
        index: times for server in site.servers.values() for index, times in server.seen().items() if times > 1
    } == {}
    assert sum(len(indices) for indices in seen.values()) == len(EVERY)
    assert set().union(*seen.values()) == EVERY
    assert finished(site.fleet()) == seen


def gave(site: Site) -> int:
    """Records that `b` has given away."""
    fleet = site.fleet()
    leases = moved(fleet, extraction.plan_of(fleet, RUN).identity)["b"].given
    return sum(ranges.count(lease.ranges) for lease in leases)


def test_extract_moves_work_to_the_host_that_is_done(uneven: Site, clone: Path) -> None:
    with typed(uneven, clone, "extract") as command:
        said, _ = command.communicate(timeout=PATIENCE_SECONDS)
    assert command.returncode == 0, said
    assert TOOK_OVER.search(said), said
    assert gave(uneven) > len(EVERY) / 8
    made_once(uneven)


def test_pull_follow_moves_work_and_brings_what_moved(uneven: Site, clone: Path, tmp_path: Path) -> None:
    extraction.start(uneven.fleet(), RUN)
    with typed(uneven, clone, "pull", "--follow", "--to", str(tmp_path / "to")) as command:
        said, _ = command.communicate(timeout=PATIENCE_SECONDS)
    assert command.returncode == 0, said
    assert TOOK_OVER.search(said), said
    assert gave(uneven) > len(EVERY) / 8
    made_once(uneven)
    assert delivered(tmp_path / "to") == {f"hs_{index}.safetensors" for index in EVERY}


def test_status_watch_moves_work_and_shows_it(uneven: Site, clone: Path) -> None:
    extraction.start(uneven.fleet(), RUN)
    shown, master, command = "", *on_terminal(inv(uneven, "status", "--watch"), clone)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ended(uneven):
            assert time.monotonic() < deadline, shown[-2000:]
            shown += os.read(master, 65536).decode(errors="replace")
        command.send_signal(signal.SIGINT)
        with suppress(OSError):  # the terminal's other end is closed
            while chunk := os.read(master, 65536):
                shown += chunk.decode(errors="replace")
        assert command.wait(PATIENCE_SECONDS) == 130, shown[-2000:]
    finally:
        command.kill()
        command.wait()
        os.close(master)
    assert TOOK_OVER.search(shown), shown[-4000:]
    assert "Traceback" not in shown
    assert gave(uneven) > len(EVERY) / 8
    made_once(uneven)


def delivered(folder: Path) -> set[str]:
    return {path.name for path in (folder / "hidden_states").iterdir()}


def ended(site: Site) -> bool:
    return sum(len(indices) for indices in finished(site.fleet()).values()) >= len(EVERY)


def on_terminal(argv: list[str], folder: Path) -> tuple[int, subprocess.Popen[bytes]]:
    """A command on a terminal of 120 columns, and the terminal's own end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"}
    command = subprocess.Popen(argv, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    return master, command


def test_a_host_added_while_leases_move_gets_its_share(site: Site, clone: Path, tmp_path: Path) -> None:
    """What a host finishes before it hears of the new plan may be made again; every record is delivered once."""
    for name, delay in (("a", 0.5), ("b", 4.0), ("c", 0.01)):
        site.serve(name, delay=delay, high_water=30_000)
    with typed(site, clone, "extract") as attached:
        until(lambda: RUN in known(site) and gave(site) > 0, "a lease")
        line = f"  c: {{workdir: {site.root}/c, dump_dir: {site.ramdisk}/c}}\n"
        site.inventory.write_text(site.inventory.read_text() + line)
        with typed(site, clone, "extract") as command:
            said, _ = command.communicate(timeout=PATIENCE_SECONDS)
        assert command.returncode == 0, said
        said, _ = attached.communicate(timeout=PATIENCE_SECONDS)
    assert attached.returncode == 0, said
    fleet = site.fleet()
    assert len(finished(fleet)["c"]) > 0
    assert set().union(*finished(fleet).values()) == EVERY
    with typed(site, clone, "pull", "--to", str(tmp_path / "to")) as command:
        said, _ = command.communicate(timeout=PATIENCE_SECONDS)
    assert command.returncode == 0, said
    assert delivered(tmp_path / "to") == {f"hs_{index}.safetensors" for index in EVERY}


def known(site: Site) -> set[str]:
    """Runs that `b` holds."""
    folder = site.root / "b" / "runs"
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
