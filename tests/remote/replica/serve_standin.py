"""Starts a stand-in as the server `main` of a working directory: what a replica's `serve_with` is in tests.

`python serve_standin.py DELAY HIDDEN WORKDIR`; returns once the stand-in is ready.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from hosts.practice.ports import free_port
from remote.servers.housekeeping import dump
from remote.shared.paths import Workdir
from remote.shared.processes import MARK

STANDIN = Path(__file__).parents[1] / "extract" / "standin.py"
PATIENCE_SECONDS = 60.0
SLOWER = "ROOST_PRACTICE_SLOWER"
"""How many times as long the stand-in takes, if the node's environment says so."""


def dump_dir_of(workdir: Path) -> Path:
    """The dump directory of the stand-in of a node with this workdir; no other test that runs now has the same."""
    return Path("/dev/shm") / f"roost-replica-{hashlib.sha256(str(workdir).encode()).hexdigest()[:12]}"


def main(delay: float, hidden: int, workdir: Path) -> None:
    port, dump_dir = free_port(), dump_dir_of(workdir)
    mark = f"{Workdir(workdir).server('main').root}#{secrets.token_hex(8)}"
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / "standin.log").open("ab") as log:
        argv = [sys.executable, str(STANDIN), str(port)]
        environ = {**os.environ, MARK: mark}
        subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    dump.claim(dump_dir, mark)
    delay *= float(os.environ.get(SLOWER, "1"))
    config = {
        "workdir": str(workdir),
        "dump_dir": str(dump_dir),
        "port": port,
        "delay": delay,
        "hidden": hidden,
    }
    request = urllib.request.Request(f"http://127.0.0.1:{port}/configure", json.dumps(config).encode())
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
