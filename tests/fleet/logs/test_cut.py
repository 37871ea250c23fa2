"""Logs over a real sshd whose sessions are killed again and again: every line arrives, once, whole, in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hosts.commands.logs import logs
from hosts.errors import RoostError
from hosts.fleet import Fleet
from hosts.inventory.model import Host, Inventory
from hosts.practice.sshd import PrivateSshd
from remote.shared.messages.logs import LogItem, LogLines, LogSource, LogsRequest
from remote.shared.paths import Workdir

pytestmark = pytest.mark.ssh

LINES = 3000
CUTS = 4
DEADLINE_SECONDS = 90.0


class Box:
    """An sshd, the host entry that reaches it, and a server's log folder on it."""

    def __init__(self, folder: Path) -> None:
        self.sshd = PrivateSshd(folder / "sshd", folder / "home")
        self.ref, port = self.sshd.start()
        known_hosts = folder / "known_hosts"
        known_hosts.write_text(self.sshd.known_hosts_line(port))
        self.host = Host(
            name="box",
            address="127.0.0.1",
            ssh_port=port,
            identity_file=str(self.sshd.client_key),
            ssh_config=str(folder / "none"),
            known_hosts=str(known_hosts),
            python=sys.executable,
            workdir=str(folder / "work"),
        )
        self.log = Workdir(folder / "work").server("main").log(1)
        self.log.parent.mkdir(parents=True)
        self.fleet = Fleet(Inventory(path=folder / "i", hosts={}, local=self.host), [self.host])

    def sessions(self) -> list[psutil.Process]:
        """The sshd children that carry connections."""
        return psutil.Process(self.ref.pid).children()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    yield box
    box.fleet.close()
    box.sshd.stop(box.ref)


def wait_until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < ends_at, "the condition did not come true"
        time.sleep(0.02)


def test_no_line_is_lost_or_doubled_over_cut_connections_and_a_restart(box: Box) -> None:
    expected = [f"line {number} {'x' * (number % 200)}" for number in range(LINES)]
    arrived: list[str] = []
    lost: list[RoostError] = []

    def take(host: Host, item: LogItem) -> None:
        if isinstance(item, LogLines):
            arrived.extend(item.lines)

    box.log.write_text(expected[0] + "\n")
    request = LogsRequest(sources=[LogSource(name="main")], lines=None, follow=True)
    stopped = threading.Event()

    def read() -> None:
        logs(box.fleet, request, take, lambda host, error, pause: lost.append(error), stopped)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    wait_until(lambda: bool(arrived))
    share = LINES // (CUTS + 1)
    path = box.log
    for cut in range(CUTS + 1):
        before = len(arrived)
        with path.open("a") as stream:
            for line in expected[max(1, cut * share) : (cut + 1) * share]:
                stream.write(line + "\n")
                stream.flush()
        if cut == CUTS:
            break
        # A cut needs a connection on which lines come: one that is cut during its login is tried again unnoticed.
        wait_until(lambda count=before: len(arrived) > count and bool(box.sessions()))  # type: ignore[misc]
        for session in box.sessions():
            os.kill(session.pid, signal.SIGKILL)
        wait_until(lambda count=cut: len(lost) > count)  # type: ignore[misc]
        if cut == 1:
            path = path.with_name("main_v2.log")  # the server was started again meanwhile
    wait_until(lambda: len(arrived) >= LINES)
    stopped.set()
    box.fleet.close()
    reader.join(DEADLINE_SECONDS)
    assert not reader.is_alive()
    assert arrived == expected


def test_an_interrupt_ends_at_once_and_leaves_nothing_running_on_the_host(box: Box, tmp_path: Path) -> None:
    box.log.write_text("first\n")
    inventory = tmp_path / "inventory.yaml"
    fields = box.host.model_dump(exclude_defaults=True, exclude={"name"})
    inventory.write_text("hosts:\n  box: " + repr(fields).replace("'", '"') + "\n")
    command = [str(Path(sys.executable).parent / "inv"), "logs", "--host", "box", "--follow", "--inventory"]
    with subprocess.Popen(
        [*command, str(inventory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "box | first\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert "Traceback" not in process.communicate()[1]

    def verbs() -> list[psutil.Process]:
        return [each for each in psutil.process_iter(["cmdline"]) if _is_verb(each, box.host.workdir)]

    wait_until(lambda: not verbs())


def _is_verb(process: psutil.Process, workdir: str) -> bool:
    try:
        return process.cwd().startswith(workdir) and "remote" in process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
