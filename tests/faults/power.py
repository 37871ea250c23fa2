"""Process 1 of a box, with the box's sshd, stand-in server and RAM disk. It ends when its stdin ends.

A program, started by `tests.faults.box` inside the box's namespaces (or on loopback, if there are none). It reads the
JSON line `Power`, answers with a line that has its ports, and then obeys every further line: `{"serve": CONFIG}` starts
the stand-in again, `{"post": [PATH, BODY]}` sends the stand-in a request, `{"sshd": SETTINGS}` starts sshd again with
these further settings, and `{"sshd": null}` replaces sshd by a listener that never answers.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hosts.practice.ports import free_port
from hosts.practice.sshd import PrivateSshd
from remote.servers.housekeeping import dump
from remote.shared.messages.server import ProcessRef
from remote.shared.paths import Workdir
from remote.shared.processes import MARK

RAMDISK = "/dev/shm"
SSH_PORT, SERVER_PORT = 22, 30000
PATIENCE_SECONDS = 60.0
STANDIN = Path(__file__).parents[1] / "remote" / "extract" / "standin.py"


@dataclass(frozen=True)
class Power:
    """The settings of a box. `isolated` says whether it has its own namespaces."""

    etc: str
    home: str
    isolated: bool
    ramdisk_bytes: int
    ssh_port: int | None = None
    """The port of the earlier start; None at the first start."""


def main() -> None:
    power = Power(**json.loads(sys.stdin.readline()))
    if power.isolated:
        size = f"size={power.ramdisk_bytes}"
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", RAMDISK], check=True)
    way_in = WayIn(power)
    way_in.open({})
    threading.Thread(target=_reap, daemon=True).start()
    _say({"ssh_port": way_in.port, "server_port": SERVER_PORT if power.isolated else free_port()})
    for line in sys.stdin:
        message = json.loads(line)
        if "serve" in message:
            _serve(message["serve"])
        elif "post" in message:
            _post(*message["post"])
        elif message["sshd"] is None:
            way_in.mute()
        else:
            way_in.open(message["sshd"])
        _say({})
    way_in.close()
    for child in psutil.Process().children(recursive=True):
        child.kill()


class WayIn:
    """The box's sshd, or the listener in its place."""

    def __init__(self, power: Power) -> None:
        self._power = power
        self._sshd = PrivateSshd(Path(power.etc), Path(power.home))
        self._running: ProcessRef | None = None
        self._mute: socket.socket | None = None
        self.port = SSH_PORT if power.isolated else power.ssh_port

    def open(self, settings: dict[str, str]) -> None:
        """Start sshd, in place of the current listener."""
        self.close()
        address = {"ListenAddress": "0.0.0.0"} if self._power.isolated else {}
        self._sshd = PrivateSshd(Path(self._power.etc), Path(self._power.home), {**address, **settings})
        self._running, self.port = self._sshd.start(self.port)

    def mute(self) -> None:
        """Replace sshd by a listener that accepts connections and never answers."""
        self.close()
        self._mute = socket.create_server(("0.0.0.0" if self._power.isolated else "127.0.0.1", self.port or 0))

    def close(self) -> None:
        """Stop listening and end all sessions."""
        if self._mute is not None:
            self._mute.close()
        if self._running is not None:
            self._sshd.stop(self._running)
        self._mute = self._running = None


def _serve(config: dict[str, Any]) -> None:
    """Start the stand-in, and return when its state file says that it is ready."""
    server = Workdir(Path(config["workdir"])).server("main")
    mark = f"{server.root}#{secrets.token_hex(8)}"
    log = Path(config["workdir"]).parent / "standin.log"
    with log.open("ab") as output:
        argv = [sys.executable, str(STANDIN), str(config["port"])]
        environ = {**os.environ, MARK: mark, "HOME": str(Path(config["workdir"]).parent)}
        subprocess.Popen(
            argv, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    dump.claim(Path(config["dump_dir"]), mark)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            _post(f"http://127.0.0.1:{config['port']}/configure", config)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _post(url: str, body: object) -> None:
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=10).close()


def _reap() -> None:
    """Reap processes that lost their parent, because they become children of process 1."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.05)


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
