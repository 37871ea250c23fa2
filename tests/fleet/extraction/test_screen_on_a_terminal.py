"""`inv watch` as a user types it: on a real terminal of 80 columns without colour, and piped."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.fleet.extraction.conftest import Site

PATIENCE_SECONDS = 90.0
COLOURS = re.compile(rb"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38;[25]|48;[25]|4[1-7])[0-9;]*m")


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """What the terminal shows until it shows `wanted`."""
    shown, deadline = b"", time.monotonic() + PATIENCE_SECONDS
    while wanted not in shown:
        assert time.monotonic() < deadline, shown[-2000:]
        shown += os.read(descriptor, 65536)
    return shown


def inv() -> str:
    return str(Path(sys.executable).parent / "inv")


def test_the_screen_shows_hosts_without_colour_and_q_restores_the_terminal(site: Site, clone: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1", "ROOST_INVENTORY": str(site.inventory)}
    watching = subprocess.Popen(
        [inv(), "watch", "--hosts", "all"], cwd=clone, env=environment, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    try:
        shown = read_until(master, b"idle")
        os.write(master, b"q")
        while watching.poll() is None:
            try:
                shown += os.read(master, 65536)
            except OSError:  # the terminal's other end is closed
                break
        assert watching.wait(PATIENCE_SECONDS) == 0
    finally:
        if watching.poll() is None:
            watching.kill()
            watching.wait()
        os.close(master)
    assert b"no run is known" in shown
    assert not COLOURS.search(shown)
    assert re.search(rb"\x1b\[[0-9;]*\b7\b", shown), "the chosen row cannot be told from the others"


def test_piped_watch_prints_lines_and_ends_if_no_run_works(site: Site, clone: Path) -> None:
    environment = {**os.environ, "ROOST_INVENTORY": str(site.inventory)}
    done = subprocess.run(
        [inv(), "watch", "--hosts", "all"], cwd=clone, env=environment, capture_output=True, text=True, check=False,
        timeout=PATIENCE_SECONDS, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "a: idle" in done.stdout.splitlines()
    assert "\x1b" not in done.stdout
