"""Writes `.capture-<pid>.json` into the dump directory once a second: this process's capture status. Inside SGLang."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from remote.capture import VERSION
from remote.capture.admission import Admission
from remote.capture.engine import Capture
from remote.capture.environment import Settings
from remote.shared.files import write_whole
from remote.shared.messages.capture import CaptureStatus
from remote.shared.supervised.threads import Thread, log_end

logger = logging.getLogger(__name__)
_BEAT_SECONDS = 1.0


def keep_status(capture: Capture, admission: Admission, settings: Settings, *, sglang: str) -> None:
    """Start the thread that writes the status if it changed, and gives up records without new rows."""

    def run() -> None:
        never, last = threading.Event(), None
        while True:
            admission.expire()
            status = _status(capture, admission, settings, sglang)
            if status != last:
                _write(settings.dump_dir, status)
                last = status
            never.wait(_BEAT_SECONDS)

    Thread(run, "roost-capture-status", log_end)


def _status(capture: Capture, admission: Admission, settings: Settings, sglang: str) -> CaptureStatus:
    totals, forward, space, ring = admission.totals, admission.waits, admission.space.waits, admission.ring.waits
    return CaptureStatus(
        pid=os.getpid(),
        version=VERSION,
        payload=Path(__file__).resolve().parents[2].name,
        sglang=sglang,
        boundaries=list(capture.place.boundaries),
        final=settings.final,
        stage=capture.place.part,
        stages=capture.place.parts,
        records=totals.records,
        failed=totals.failed,
        rows=totals.rows,
        bytes_written=admission.writers.bytes_written,
        in_flight=admission.in_flight,
        forward_waits=forward.times,
        forward_wait_seconds=forward.seconds,
        directory_waits=space.times,
        directory_wait_seconds=space.seconds,
        ring_waits=ring.times,
        ring_wait_seconds=ring.seconds,
        capture_seconds=capture.seconds,
        last_cause=totals.last_cause,
    )


def _write(directory: Path, status: CaptureStatus) -> None:
    status = status.model_copy(update={"updated_at": time.time()})
    try:
        if directory.is_dir():
            write_whole(directory / f".capture-{status.pid}.json", status.model_dump_json().encode())
    except OSError as error:
        logger.warning("Roost's capture could not write its status to %s: %s", directory, error.strerror)
