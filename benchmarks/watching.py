"""Watches a practice run and writes its report: pictures for docs/, recordings for tests, and a transcript.

    .venv/bin/python -m benchmarks.watching [--docs docs] [--recorded tests/recorded] [--out benchmarks/results]
    .venv/bin/python -m benchmarks.watching --redraw    # the pictures again, from the recordings, without SGLang

Three practice hosts extract. One host is paused and resumed, and one is lost with everything on it. While they work, no
`inv` runs, and a webhook on loopback receives the hosts' own notifications.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchmarks.practice import Practice, practising
from hosts.commands.report import HostRecord, asked
from hosts.commands.watch import HostActions
from hosts.errors import HostUnreachableError
from hosts.fleet import fleet_of
from hosts.inventory.load import load_inventory
from hosts.plan.plan import load
from hosts.practice import fleet as practice_fleet
from hosts.practice import processes
from hosts.practice.chromium import picture
from hosts.practice.corpus import write_corpus
from hosts.practice.leftovers import running_on
from hosts.report.page import page
from hosts.screen.app import Actions, WatchApp
from hosts.screen.dialogs import Detail
from hosts.series.listen import FleetSeries
from hosts.series.view import FleetView, HostView
from remote.shared.files import make_directory
from remote.shared.messages.history import Glance

RUN = "practice-night"
COST_PER_HOUR = 24.5
SIZES = ((80, 24), (160, 44))
PIXELS = {80: (1010, 640), 160: (1990, 1130)}
PATIENCE_SECONDS = 900.0


def main() -> None:
    """Make everything."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--docs", type=Path, default=Path("docs"))
    options.add_argument("--recorded", type=Path, default=Path("tests/recorded"))
    options.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options.add_argument("--redraw", action="store_true")
    given = options.parse_args()
    if given.redraw:
        redraw(given.docs, given.recorded)
        return
    with practising(hosts=3) as practice, webhook() as (address, told):
        prepare(practice, address)
        practice.inv("extract", "--hosts", "all", "--run", RUN, "--notify", "--detach")
        left_at = time.time()
        practice.note("From here on no inv command runs; the screens below are drawn by this script.")
        watch(practice, given.docs, given.recorded)
        practice.note(f"The laptop's last command ended at {clock(left_at)}. What the webhook was told since then:")
        for at, event in told:
            if at > left_at:
                practice.note(f"{clock(at)} {json.dumps(event, ensure_ascii=False)}")
        cost(practice)
        report(practice, given.docs, given.recorded)
        lines = ["# A watched practice run", "", f"`python -m benchmarks.watching`, {date.today()}, SGLang on CPU.", ""]
        lines += ["```", *practice.transcript, "```", ""]
        (given.out / f"watching-{date.today()}.md").write_text("\n".join(lines))


def prepare(practice: Practice, address: str) -> None:
    """Start the servers, plan the run, and put prices and a webhook into the inventory."""
    yaml = YAML()
    inventory = yaml.load(practice.paths.inventory.read_text())
    inventory["defaults"] |= {"cost_per_hour": COST_PER_HOUR, "notify": {"webhook": address}, "in_flight_tokens": 2048}
    with practice.paths.inventory.open("w") as out:
        yaml.dump(inventory, out)
    dataset = practice.paths.folder / "dataset"
    write_corpus(practice.paths.corpus)
    practice.inv("prepare", "--input", str(practice.paths.corpus), "--out", str(dataset))
    practice.inv("plan", "--hosts", "all", "--dataset", str(dataset), "--run", RUN, "--rate", "150")
    practice.inv("serve", "--hosts", "all", "--mode", "extract")


def watch(practice: Practice, docs: Path, recorded: Path) -> None:
    """Draw the screens once one host is paused and another is lost, and wait for the end of the third."""
    inventory = load_inventory(practice.paths.inventory)
    with fleet_of(inventory, list(inventory.hosts.values())) as fleet, FleetSeries(fleet, RUN) as series:
        until(lambda: all(host.done > 8 for host in series.view().hosts), "records on every host")
        HostActions(fleet).steer("practice2", "pause")
        lose(practice, "practice3")
        until(lambda: series.view().lost == ["practice3"], "a host that is lost")
        until(lambda: told_of(series.view(), "paused"), "the recorder's word on the pause")
        view = series.view()
        keep_views(recorded, view)
        for width, height in SIZES:
            asyncio.run(draw(series.view, HostActions(fleet), docs / f"watch-{width}.png", width, height))
        asyncio.run(draw(series.view, HostActions(fleet), docs / "watch-detail.png", 160, 44, detail=True))
        HostActions(fleet).steer("practice2", "resume")
        until(lambda: all(host.is_lost or host.left_seconds == 0 for host in series.view().hosts), "the run's end")
        until(lambda: told_of(series.view(), "finished"), "the recorder's word on the end")
        time.sleep(12)  # the next look of the recorders sends what they have to tell


def cost(practice: Practice) -> None:
    """Note the recorders' CPU time and memory, as the kernel counts them."""
    for name in ("practice1", "practice2"):
        host = practice.paths.host(name)
        recorders = [one.process for one in running_on(host.workdir) if one.kind == "recorder"]
        for process in filter(None, map(processes.find, recorders)):
            times, seconds = process.cpu_times(), time.time() - process.create_time()
            used = times.user + times.system + times.children_user + times.children_system
            size = sum(path.stat().st_size for path in host.workdir.glob("*/*/history.sqlite"))
            practice.note(
                f"{name}'s recorder: {used:.1f} CPU seconds in {seconds:.0f} s (its own start included), "
                f"{process.memory_info().rss / 1e6:.0f} MB; histories of {size:,} bytes"
            )


def told_of(view: FleetView, kind: str) -> bool:
    """Return whether a reachable host has recorded an event of this kind."""
    return any(event.kind == kind for _, event in view.events(100))


def lose(practice: Practice, name: str) -> None:
    """Kill a host without notice: its sshd with all sessions, its servers, its extractor and its recorder."""
    state = practice_fleet._read(practice.paths)
    host = next(one for one in state.hosts if one.name == name)
    living = [one.process for one in running_on(practice.paths.host(name).workdir)] + [host.sshd]
    practice.note(f"{name} is lost: {len(living)} processes killed")
    for process in filter(None, map(processes.find, living)):
        for child in process.children(recursive=True):
            child.kill()
        process.kill()


def keep_views(folder: Path, view: FleetView) -> None:
    """Keep the hosts' answers for tests of views."""
    hosts = {
        host.name: {
            "glance": None if host.glance is None else host.glance.model_dump(mode="json"),
            "heard_at": host.heard_at,
            "error": None if host.error is None else host.error.message,
            "lost_at": host.lost_at,
            "rates": host.rates,
            "cost_per_hour": host.cost_per_hour,
        }
        for host in view.hosts
    }
    make_directory(folder)
    (folder / "fleet.json").write_text(json.dumps({"at": view.at, "hosts": hosts}, indent=1))


async def draw(
    source: Callable[[], FleetView],
    actions: Actions,
    target: Path,
    width: int,
    height: int,
    *,
    detail: bool = False,
) -> None:
    """A picture of the screen of `inv watch` at this size."""
    app = WatchApp(source, actions)
    async with app.run_test(size=(width, height)) as pilot:
        await pilot.pause()
        if detail:
            app.action_detail()
            await pilot.pause()
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert isinstance(app.screen, Detail)
        drawn = target.with_suffix(".svg")
        drawn.write_text(app.export_screenshot(title=f"inv watch --hosts all, {width} columns"))
    await asyncio.to_thread(picture, drawn, target, *PIXELS[width])
    drawn.unlink()


def report(practice: Practice, docs: Path, recorded: Path) -> None:
    """Make the report by its command, draw its pictures, and keep its data."""
    path = practice.paths.folder / "report.html"
    practice.follow(practice.start("report", "--hosts", "all", "--run", RUN, "--out", str(path)))
    pictures(path, docs)
    practice.note(f"report.html has {path.stat().st_size:,} bytes")
    inventory = load_inventory(practice.paths.inventory)
    with fleet_of(inventory, list(inventory.hosts.values())) as fleet:
        keep_records(recorded, asked(fleet, RUN), practice)
        shutil.copy(fleet.inventory.kept.plan(RUN), recorded / "plan.json")


def redraw(docs: Path, recorded: Path) -> None:
    """Draw the pictures that need only the recordings: all except the detail, whose log was not kept."""
    view = read_view(recorded)
    for width, height in SIZES:
        asyncio.run(draw(lambda: view, NoActions(), docs / f"watch-{width}.png", width, height))
    records = [HostRecord.model_validate(one) for one in json.loads((recorded / "report.json").read_text())]
    plan = load(recorded / "plan.json") if (recorded / "plan.json").exists() else None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(page(RUN, records, plan, [(view.at, f"inv report --hosts all --run {RUN}")]))
        pictures(path, docs)


class NoActions:
    """The actions of the keys for a recording, which has no hosts."""

    def steer(self, host: str, action: str) -> str:
        return f"{host} is a recording, and cannot {action}."

    def tail(self, host: str) -> list[str]:
        return [f"{host} is a recording."]


def read_view(recorded: Path) -> FleetView:
    """Return the recorded fleet, which `keep_views` wrote."""
    kept = json.loads((recorded / "fleet.json").read_text())
    hosts = []
    for name, one in kept["hosts"].items():
        glance = None if one["glance"] is None else Glance.model_validate(one["glance"])
        error = HostUnreachableError(one["error"]) if one["error"] else None
        rates = tuple((at, rate) for at, rate in one["rates"])
        hosts.append(HostView(name, glance, one["heard_at"], error, one["lost_at"], rates, one["cost_per_hour"]))
    return FleetView(kept["at"], hosts)


def pictures(path: Path, docs: Path) -> None:
    """Draw the report with Chromium, light and dark."""
    picture(path, docs / "report.png", 1200, 3300)
    picture(path, docs / "report-dark.png", 1200, 1400, dark=True)


def keep_records(folder: Path, records: list[HostRecord], practice: Practice) -> None:
    """Keep the data of the report for tests, without the paths of this machine."""
    text = json.dumps([record.model_dump(mode="json") for record in records])
    (folder / "report.json").write_text(text.replace(str(practice.paths.root), "/home/roost") + "\n")


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition on the hosts holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come")
        time.sleep(0.5)


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


@contextmanager
def webhook() -> Iterator[tuple[str, list[tuple[float, Any]]]]:
    """Yield an address, and the list of everything that is posted to it, with the time."""
    told: list[tuple[float, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append((time.time(), json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", told
    server.shutdown()


if __name__ == "__main__":
    main()
