"""Ctrl-C ends `inv` with exit code 130 and without a traceback at any moment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

CLONE = Path(__file__).parents[3]
INV = [sys.executable, "-m", "invoke"]
WAIT_SECONDS = 60


def test_ctrl_c_while_the_tasks_are_imported_ends_without_a_traceback(tmp_path: Path) -> None:
    fake = tmp_path / "pydantic.py"
    fake.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('went on')\n")
    done = subprocess.run(
        [*INV, "help"],
        cwd=CLONE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_while_a_host_is_silent_ends_without_a_traceback(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_SECONDS)
        inventory = tmp_path / "inventory.yaml"
        inventory.write_text(
            f"hosts: {{a: {{address: 127.0.0.1, ssh_port: {silent.getsockname()[1]}, connect_timeout: 600}}}}\n"
        )
        command = [*INV, "status", "--host", "a", "--inventory", str(inventory)]
        with subprocess.Popen(command, cwd=CLONE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            taken, _ = silent.accept()
            running.send_signal(signal.SIGINT)
            stdout, stderr = running.communicate(timeout=WAIT_SECONDS)
            taken.close()
    assert (running.returncode, stdout) == (130, "")
    assert stderr == "Interrupted; nothing continues.\n"
