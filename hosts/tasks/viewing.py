"""Tasks that show present and past runs: `watch`, `report`, `metrics`."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from invoke.context import Context

from hosts import typed
from hosts.commands import report as reporting
from hosts.commands.runs import local_plan
from hosts.commands.watch import HostActions
from hosts.console.live import live_lines
from hosts.console.output import EXIT_FAILED, Output
from hosts.console.watch import WatchLines
from hosts.errors import RoostError, UsageError
from hosts.fleet import Fleet
from hosts.plan.plan import load
from hosts.report.verdict import totals, verdict
from hosts.series.listen import FleetSeries
from hosts.tasks.session import JSON, TARGET, chosen_run, finish, printing, roost_task, session
from remote.shared.files import SHARED_MODE, write_whole

LINES_SECONDS = 10.0
"""Seconds between two refreshes of printed lines."""
FIRST_SECONDS = 20.0
"""Seconds for which the first lines wait for hosts that have not answered yet."""
METRICS_SECONDS = 10.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MOST_PORT = 65535
EXTRA = "`make venv` in a clone, or the extra `watch` of the wheel,"


@roost_task(
    TARGET,
    {"json": "print one JSON document on each line, one for every refresh"},
    run="name of the run (default: every run at work, or else each host's newest)",
    lines="print lines instead of drawing a screen; always so if the output is piped",
    web="a live page on 127.0.0.1 instead of the screen; its address, with a token, is printed",
    port="port of the --web page; 0 takes a free port",
    example="inv watch --hosts all",
)
def watch(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    run: str = "",
    lines: bool = False,
    web: bool = False,
    port: int = 0,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show the fleet live, full-screen; if piped, print lines until every run has ended. Leaving changes nothing."""
    with session(host, hosts, inventory, json) as (fleet, output):
        fleet.watcher = None
        if web:
            _serve_page(fleet, output, run, port)
            return
        drawn = output.out.is_terminal and not json and not lines and os.environ.get("TERM") != "dumb"
        if drawn:
            _draw(fleet, run)
        else:
            _print(fleet, output, run)


@roost_task(
    TARGET,
    JSON,
    run="name of the run (default: the one planned last)",
    out="the page's file (default: RUN.html)",
    source="make the report from what a pull kept in this folder, and ask no host",
    example="inv report --hosts all --run kimi-1 --out report.html",
)
def report(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    run: str = "",
    out: str = "",
    source: str = "",
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Write a run's report as one HTML file that needs no network: verdict, plots, events, costs, versions."""
    page = _page()
    with session(host, hosts, inventory, json) as (fleet, output):
        run = chosen_run(fleet, output, run)
        path = Path(out or f"{run}.html").expanduser()
        if not path.parent.is_dir():
            raise UsageError(
                f"The folder {path.parent} for the report does not exist.", remedy="Make it, or give --out."
            )
        with live_lines(output, fleet):
            records = reporting.kept(Path(source), run) if source else reporting.asked(fleet, run)
        plan = None
        with suppress(RoostError):
            plan = load(local_plan(fleet, run))
        made_by = [*reporting.typed(fleet.inventory.kept.trail, run), (time.time(), f"inv {typed.line(sys.argv[1:])}")]
        content = page(run, records, plan, made_by)
        try:
            write_whole(path, content.encode(), durable=False, mode=SHARED_MODE)
        except OSError as error:
            raise UsageError(f"The report cannot be written to {path}: {error.strerror}.") from error
        judged = verdict(records, plan.records if plan else None)
        output.document({"run": run, "path": str(path), "verdict": judged.word, "sentence": judged.sentence})
        output.line(f"{path}: {judged.word}: {judged.sentence}")
        for record in records:
            if record.problem:
                output.note(f"{record.host}: {record.problem}")
        amiss = totals(records).quarantined or any(record.account is None for record in records)
        finish(EXIT_FAILED if amiss else 0)


@roost_task(
    TARGET,
    listen="ADDRESS:PORT to serve /metrics on",
    example="inv metrics --hosts all --listen 127.0.0.1:9109",
)
def metrics(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    listen: str = "127.0.0.1:9109",
    inventory: str | None = None,
) -> None:
    """Serve the fleet's numbers for Prometheus until Ctrl-C; docs/grafana.json in a clone is a Grafana dashboard."""
    with session(host, hosts, inventory, json=False) as (fleet, output):
        fleet.watcher = None
        address, port = _address(listen)
        app, serving = _web()
        with (
            serving.listen(address, port, "--listen") as sock,
            FleetSeries(fleet, every_seconds=METRICS_SECONDS) as series,
        ):
            output.line(f"http://{listen} serves /metrics; Ctrl-C ends it.")
            if address not in LOOPBACK:
                output.note(f"Everybody who can connect to {address} can read the hosts' names and their progress.")
            output.flush()
            serving.serve(app.metrics_app, series.view, sock)


def _address(text: str) -> tuple[str, int]:
    address, colon, port = text.rpartition(":")
    if not colon or not address or not port.isdigit() or int(port) > MOST_PORT:
        raise UsageError(f"--listen {text!r} is not ADDRESS:PORT.", remedy="As in 127.0.0.1:9109 or [::1]:9109.")
    return address.strip("[]"), int(port)


def _serve_page(fleet: Fleet, output: Output, run: str, port: int) -> None:
    app, serving = _web()
    actions, token = HostActions(fleet), secrets.token_urlsafe(16)
    with serving.listen("127.0.0.1", port, "--port") as sock, FleetSeries(fleet, run) as series:
        output.line(f"http://127.0.0.1:{sock.getsockname()[1]}/{token}/")
        output.note("Everybody who has this address can read the page; nothing can be changed there. Ctrl-C ends it.")
        output.flush()
        serving.serve(lambda view: app.page_app(view, actions.tail, token), series.view, sock)


def _web() -> tuple[ModuleType, ModuleType]:
    try:
        from hosts.web import app, serve
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The web page and the metrics need the extra [watch], and {error.name} is not installed.",
            remedy=f"{EXTRA} installs it.",
        ) from error
    return app, serve


def _page() -> Callable[..., str]:
    try:
        from hosts.report.page import page
    except ModuleNotFoundError as error:
        with printing(json=False):
            raise UsageError(
                f"inv report needs the extra [watch], and {error.name} is not installed.",
                remedy=f"{EXTRA} installs it.",
            ) from error
    return page


def _draw(fleet: Fleet, run: str) -> None:
    try:
        from hosts.screen.app import WatchApp
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The screen of inv watch needs the extra [watch], and {error.name} is not installed.",
            remedy=f"{EXTRA} installs it; inv watch --lines does not need it.",
        ) from error
    with FleetSeries(fleet, run) as series:
        app = WatchApp(series.view, HostActions(fleet))
        app.run()
    if app.fault is not None:
        raise app.fault


def _print(fleet: Fleet, output: Output, run: str) -> None:
    """Print until no run works any more, or until Ctrl-C."""
    shown = WatchLines(output)
    with FleetSeries(fleet, run) as series:
        began = time.monotonic()
        while not series.all_heard and time.monotonic() - began < FIRST_SECONDS:
            time.sleep(0.1)
        while True:
            view = series.view()
            shown.show(view)
            if view.is_over:
                finish(EXIT_FAILED if view.is_amiss else 0)
                return
            time.sleep(LINES_SECONDS)
