"""Screening with real ranks under settings that crash or hang: both are recorded, skipped, and leave no process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.tune_practice import frozen_ranks
from hosts.inventory.model import Host, Mode
from hosts.inventory.servers import server_specs
from hosts.practice.paths import PracticePaths
from hosts.transport.local import LocalBackend
from hosts.tune.grid import collectives, current
from hosts.tune.record import Basis, load
from hosts.tune.screening import Screening
from hosts.tune.search import Plan

pytestmark = pytest.mark.engine

PLAN = Plan(mode="serve", goal="decode", confirm=1, deadline_seconds=60.0)


def ranks() -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if "remote.tune.rank" in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def test_settings_that_crash_or_hang_are_recorded_and_the_others_are_ranked(
    clone: Path, tiny_model_path: Path, tmp_path: Path
) -> None:
    host = Host(
        name="here",
        connection="local",
        python=str(PracticePaths(clone).engine_python),
        workdir=str(tmp_path / "work"),
        model=str(tiny_model_path),
        gpus=0,
        tp=2,
        modes={"serve": Mode()},
        tune={"GLOO_SOCKET_IFNAME": ["lo", "nonsense0", "frozen0"]},
    )
    spec = server_specs(host, "serve")[0]
    basis = Basis(grid=host.tune, now=current(host, "serve"), model=spec.model, tp=2, gpus=[])
    record = load(tmp_path, host.name, "serve", "decode", basis, fresh=True)
    with frozen_ranks("GLOO_SOCKET_IFNAME", "frozen0"):
        screening = Screening(LocalBackend(host), tmp_path, PLAN, spec, record, lambda text: None)
        best = screening.best(collectives(host, "serve"))
    by_key = {key: entry.screened[0].result for key, entry in record.entries.items() if entry.screened}
    assert by_key["GLOO_SOCKET_IFNAME=nonsense0"].status == "crashed"
    assert "nonsense0" in by_key["GLOO_SOCKET_IFNAME=nonsense0"].cause
    assert by_key["GLOO_SOCKET_IFNAME=frozen0"].status == "hung"
    assert [setting.env for setting in best[1:]] == [{"GLOO_SOCKET_IFNAME": "lo"}]
    ends_at = time.monotonic() + 10
    while ranks() and time.monotonic() < ends_at:
        os.sched_yield()
    assert ranks() == []
