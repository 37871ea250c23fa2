"""The recorded practice run (`benchmarks/watching.py`) as the views see it, and made-up hosts for what it lacks."""

from __future__ import annotations

import json
import time
from pathlib import Path

from benchmarks.watching import read_view
from hosts.commands.report import HostRecord
from hosts.errors import HostUnreachableError
from hosts.series.view import FleetView, HostView
from remote.shared.messages.extract import Counts, ExtractorState
from remote.shared.messages.history import (
    Event,
    Glance,
    GpuReading,
    Reading,
    RunReading,
    ServerReading,
)

RECORDED = Path(__file__).parent / "recorded"
NOW = 1_800_000_000.0
HOSTILE = "\x1b[31mred\x07 [bold]b[/bold] <script>alert(1)</script> 'x' \u202eabc"


def recorded_fleet() -> FleetView:
    """Three hosts: one at work, one paused, one lost."""
    return read_view(RECORDED)


def recorded_records() -> list[HostRecord]:
    """What the report of that run was made from."""
    return [HostRecord.model_validate(one) for one in json.loads((RECORDED / "report.json").read_text())]


def host(
    name: str, *, done: int = 800, rate: float = 900.0, lost: bool = False, text: str = "", **more: object
) -> HostView:
    """A host at work."""
    given: dict[str, object] = {
        "run": "kimi-1", "epoch": 1, "status": "running", "tokens_per_second": rate, "cause": text, "in_flight": 12,
    }  # fmt: skip
    given["counts"] = Counts(
        assigned=4000, done=done, tokens_assigned=900_000, tokens_done=250 * done, bytes_done=10**6 * done
    )
    state = ExtractorState.model_validate({**given, **more})
    run = RunReading(
        run="kimi-1", alive=state.status != "complete", word=state.status, state=state, disk_free_bytes=3e12
    )
    server = ServerReading(name="main", mode="extract", status="ready", alive=True, queued=3, running=8)
    gpus = [GpuReading(index=0, use_percent=97, memory_bytes=7e10, total_bytes=14e10, watts=600, celsius=60)]
    event = Event(at=NOW - 50, kind="started", subject="run kimi-1", text=text or "Epoch 1.")
    reading = Reading(at=NOW, runs=[run], servers=[server], gpus=gpus)
    return HostView(
        name=name,
        glance=Glance(reading=reading, events=[event], worked_seconds={"kimi-1": 3600.0}),
        heard_at=NOW - (90 if lost else 1),
        error=HostUnreachableError("No SSH session: connection refused.") if lost else None,
        lost_at=NOW - 60,
        rates=tuple((NOW - 60 + at, 500.0 + at) for at in range(60)),
        cost_per_hour=24.5,
    )


def fleet(*hosts: HostView) -> FleetView:
    """These hosts now."""
    return FleetView(time.time(), list(hosts))
