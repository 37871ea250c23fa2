"""What runs as process 1 of a box: its own sshd, its own stand-in server, its own RAM disk. Ends with its stdin.

A program, started by `tests.faults.box` inside the box's namespaces (or, without any, on loopback). Reads one JSON
line `Power`, answers one with its ports, and then starts the stand-in anew for every further line (fields of its
`Config`).
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hosts.practice.sshd import PrivateSshd, free_port
from remote.paths import Workdir
from remote.servers import dump
from remote.servers.processes import MARK

RAMDISK = "/dev/shm"
SSH_PORT, SERVER_PORT = 22, 30000
PATIENCE_SECONDS = 60.0
STANDIN = Path(__file__).parents[1] / "remote" / "extract" / "standin.py"


@dataclass(frozen=True)
class Power:
    """What a box is made of; `isolated` where it has namespaces of its own."""

    etc: str
    home: str
    isolated: bool
    ramdisk_bytes: int
    ssh_port: int | None = None
    """The port it had before; None for the first time."""


def main() -> None:
    power = Power(**json.loads(sys.stdin.readline()))
    if power.isolated:
        size = f"size={power.ramdisk_bytes}"
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", RAMDISK], check=True)
    settings = {"ListenAddress": "0.0.0.0"} if power.isolated else {}
    sshd = PrivateSshd(Path(power.etc), Path(power.home), settings)
    ref, port = sshd.start(SSH_PORT if power.isolated else power.ssh_port)
    threading.Thread(target=_reap, daemon=True).start()
    _say({"ssh_port": port, "server_port": SERVER_PORT if power.isolated else free_port()})
    for line in sys.stdin:
        _serve(json.loads(line))
        _say({})
    sshd.stop(ref)
    for child in psutil.Process().children(recursive=True):
        child.kill()


def _serve(config: dict[str, Any]) -> None:
    """Start the stand-in, and return once it is ready by its state file."""
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
    url, body = f"http://127.0.0.1:{config['port']}/configure", json.dumps(config).encode()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, body), timeout=10).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _reap() -> None:
    """Whatever lost its parent is process 1's child."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.05)


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
