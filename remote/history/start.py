"""The verb `record`: write the settings of this host's recorder, and start the recorder if it does not run.

Runs on the host, called by `inv serve` and `inv extract` before they start a server or an extractor.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from urllib.parse import urlsplit

from remote import detached
from remote.context import Context
from remote.history.lock import holder
from remote.history.recorder import read_settings
from remote.shared.errors import HostError
from remote.shared.files import make_directory, write_whole
from remote.shared.messages.history import NotifySettings, RecordRequest, RecordResult, Settings
from remote.shared.processes import find

START_SECONDS = 30.0
END_SECONDS = 10.0
POLL_SECONDS = 0.05
REACH_SECONDS = 5.0
MOST_RUNS = 100
MOST_LOG_BYTES = 1 << 20


def record(request: RecordRequest, context: Context) -> RecordResult:
    """Write the settings, and make sure that a recorder of this payload runs."""
    before = read_settings(context.workdir)
    runs = before.runs
    if request.notify is not None and request.run:
        runs = [*(name for name in runs if name != request.run), request.run][-MOST_RUNS:]
    settings = Settings(
        host=request.host,
        notify=request.notify or before.notify,
        runs=runs,
        stall_seconds=request.stall_seconds,
        min_free_bytes=request.min_free_bytes,
        idle_stop_seconds=request.idle_stop_seconds,
    )
    make_directory(context.workdir.recorder.root)
    write_whole(context.workdir.recorder.settings, settings.model_dump_json(indent=1).encode())
    pid, started = ensure(context)
    problem = "" if request.notify is None else unreachable(request.notify)
    return RecordResult(pid=pid, started=started, notify_problem=problem)


def ensure(context: Context) -> tuple[int, bool]:
    """Start a recorder unless a recorder of this payload runs; return its pid, and whether it was started now."""
    found = holder(context)
    if found is not None and found.payload == str(context.payload):
        return found.process.pid, False
    if found is not None:
        _end(found.process.pid, context)
    paths = context.workdir.recorder
    make_directory(paths.root)
    with suppress(OSError):
        if paths.log.stat().st_size > MOST_LOG_BYTES:
            paths.log.unlink()
    argv = [sys.executable, "-m", "remote", "recorder", "--workdir", str(context.workdir.root.resolve())]
    process = detached.start([*argv, "--output", "log"], cwd=context.payload, log=paths.log)
    deadline = time.monotonic() + START_SECONDS
    while (found := holder(context)) is None:
        if process.poll() not in (None, 0) or time.monotonic() > deadline:
            raise HostError("The recorder of this host's history did not start.", remedy=f"See {paths.log}.")
        time.sleep(POLL_SECONDS)
    return found.process.pid, found.process.pid == process.pid


def _end(pid: int, context: Context) -> None:
    """End the recorder of another payload, so that a recorder of this payload can start."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    while (found := holder(context)) is not None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if found is not None and (process := find(found.process)) is not None:
        process.kill()
        process.wait(END_SECONDS)


def unreachable(settings: NotifySettings) -> str:
    """Return why the webhook's host accepts no connection from here, without the URL's path; "" if it accepts one."""
    address = urlsplit(settings.webhook)
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        with socket.create_connection((address.hostname or "", port), timeout=REACH_SECONDS):
            return ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        return f"The webhook's host accepts no connection from this host ({reason})."
