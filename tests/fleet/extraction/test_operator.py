"""What an operator types while a run is extracted: status of a frozen extractor, stop in mid-run, a mistyped name."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.commands import extract as extraction
from hosts.commands.status import status
from hosts.fleet import Fleet
from remote.shared.messages.extract import RunStatus
from tests.fleet.extraction.conftest import RUN, Site
from tests.remote.extract.standin_process import until


@pytest.fixture
def working(site: Site) -> Iterator[Fleet]:
    """A run at work on both hosts, too slow to end by itself."""
    for name in ("a", "b"):
        site.serve(name, delay=20.0)
    fleet = site.fleet()
    assert all(outcome.ok for outcome in extraction.start(fleet, RUN).outcomes)
    until(lambda: all(run.state.in_flight for run in runs(fleet)), "requests in flight")
    yield fleet
    extraction.steer(fleet, RUN, "stop")
    until(lambda: not any(run.alive for run in runs(fleet)), "the extractors' end")


def runs(fleet: Fleet) -> list[RunStatus]:
    return [run for outcome in status(fleet) for run in outcome.result.standing.runs]


def inv(site: Site, clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    typed = [str(clone / ".venv/bin/inv"), *words, "--inventory", str(site.inventory)]
    return subprocess.run(typed, cwd=clone, capture_output=True, text=True, timeout=120, check=False)


def test_an_extractor_that_is_frozen_is_called_silent_by_status(working: Fleet, site: Site, clone: Path) -> None:
    frozen = next(run for run in runs(working) if run.host == "a").state.process
    assert frozen is not None
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        until(lambda: "silent for" in inv(site, clone, "status", "--host", "a", "--run", RUN).stdout, "the word")
        assert "silent for" not in inv(site, clone, "status", "--host", "b", "--run", RUN).stdout
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    until(lambda: "silent for" not in inv(site, clone, "status", "--host", "a", "--run", RUN).stdout, "its next word")


def test_stop_in_the_middle_names_the_run_and_what_is_left(working: Fleet, site: Site, clone: Path) -> None:
    said = inv(site, clone, "stop", "--host", "a", "--dry-run")
    assert f"a: the run '{RUN}' is working with " in said.stderr + said.stdout, said
    assert "records left and would then wait for a server. inv serve lets it continue" in said.stderr + said.stdout
    assert f"inv extract --run {RUN} --stop ends it" in said.stderr + said.stdout


def test_watching_a_run_that_nobody_knows_is_refused_with_the_nearest_name(
    working: Fleet, site: Site, clone: Path
) -> None:
    master, slave = pty.openpty()
    typed = [str(clone / ".venv/bin/inv"), "status", "--hosts", "all", "--run", "trail", "--watch"]
    done = subprocess.run(
        [*typed, "--inventory", str(site.inventory)],
        cwd=clone,
        stdout=slave,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(slave)
    os.close(master)
    assert done.returncode == 2
    assert "None of these hosts knows the run 'trail'" in done.stderr
    assert RUN in done.stderr
