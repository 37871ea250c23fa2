"""Runs `inv tune` from end to end on a practice host, with real SGLang servers of tp 2 on CPU and ranks over gloo.

    .venv/bin/python -m benchmarks.tune_practice

The grid has a network interface that does not exist (a crash), a setting whose ranks are frozen from outside like those
of a driver that never answers (a hang), and a server flag that may make a server faster. The search is killed while the
challenger's server starts, typed again, and ends with `--apply`. Writes the transcript to
`benchmarks/results/tune_practice-<date>.md`. The speeds mean nothing here; the run shows that the mechanism works.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import json
import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.practice import Practice, practising
from remote.shared.paths import Workdir

HOST = "practice1"
FROZEN = ("GLOO_SOCKET_IFNAME", "frozen0")
FLAG = "num-continuous-decode-steps"
GOAL = ("--goal", "prefill")
"""Two ranks on two cores decode some four tokens a second, so decode would take an hour."""
SETTINGS = f"""\
    tp: 2  # two ranks, a core each
    ready_timeout: 1200
    env:
      SGLANG_CPU_OMP_THREADS_BIND: "0|1"
    nccl: {{GLOO_SOCKET_IFNAME: lo}}
    # one interface that works, one that is not there, one that never answers
    tune:
      {FROZEN[0]}: [lo, nonsense0, {FROZEN[1]}]
      {FLAG}: [false, 8]
"""
STARTS_SECONDS = 1800.0


def main() -> None:
    """Search, kill the search, search on and apply; write the transcript."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = options.parse_args()
    with practising(hosts=1) as practice:
        inventory = practice.paths.inventory
        inventory.write_text(inventory.read_text() + SETTINGS)
        before, tune = inventory.read_text(), ("tune", "--host", HOST, *GOAL, "--repetitions", "4", "--deadline", "60")
        begun = running(practice)
        practice.inv(*tune, "--dry-run")
        with frozen_ranks(*FROZEN):
            killed_half_way(practice, tune)
            practice.inv(*tune, "--apply")
        changes = difflib.unified_diff(
            before.splitlines(), inventory.read_text().splitlines(), "before", "after", "", "", 1, ""
        )
        diff = [*changes] or ["(unchanged)"]
        ended = running(practice)
        practice.note(f"Roost's servers on the host before the search: {begun or 'none'}; after it: {ended or 'none'}.")
        if begun != ended:
            raise SystemExit("the host did not end as it began")
        write(given.out, practice, diff)


def killed_half_way(practice: Practice, tune: tuple[str, ...]) -> None:
    """Kill `inv tune` while the challenger's server starts."""
    process = practice.start(*tune)
    follower = threading.Thread(target=practice.follow, args=(process,))
    follower.start()
    ends_at = time.monotonic() + STARTS_SECONDS
    while not (any(FLAG in word for word in command(practice)) and running(practice)):
        if process.poll() is not None or time.monotonic() > ends_at:
            raise SystemExit("the search never came to its challenger")
        time.sleep(0.2)
    process.kill()
    follower.join()
    practice.note(f"killed with SIGKILL; on the host there is now: {running(practice)}")


def command(practice: Practice) -> list[str]:
    """Return the recorded command of the host's server; empty if there is no server."""
    path = Workdir(practice.paths.host(HOST).workdir).server("main").state
    try:
        recorded: list[str] = json.loads(path.read_bytes())["command"]
    except FileNotFoundError:
        return []
    return recorded


def running(practice: Practice) -> list[str]:
    """Return the running servers of Roost on the host."""
    from hosts.practice import fleet

    return [each.name for host in fleet.status(practice.paths.root) for each in host.running]


@contextmanager
def frozen_ranks(variable: str, value: str) -> Iterator[None]:
    """Freeze every rank of the collectives' benchmark under this setting, like a driver that never answers."""
    over = threading.Event()

    def freeze() -> None:
        while not over.wait(0.05):
            for process in psutil.process_iter(["cmdline"]):
                try:
                    is_rank = "remote.tune.rank" in (process.info["cmdline"] or [])
                    if is_rank and process.environ().get(variable) == value:
                        process.send_signal(signal.SIGSTOP)
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue

    freezer = threading.Thread(target=freeze)
    freezer.start()
    try:
        yield
    finally:
        over.set()
        freezer.join()


def write(folder: Path, practice: Practice, diff: list[str]) -> None:
    """Write the transcript as Markdown, with the machine and the date."""
    folder.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load average {load} at the end"
    lines = ["# inv tune on a practice host", "", f"{machine}; {date}. `python -m benchmarks.tune_practice`", ""]
    lines += ["```", *practice.transcript, "```", "", "What `--apply` changed in the inventory:", ""]
    lines += ["```diff", *diff, "```"]
    (folder / f"tune_practice-{date}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
