"""Hosts record a run: they notify by themselves, and watch and report show the recorded history."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context

from hosts.commands.extract import start
from hosts.commands.report import asked, keep_all, kept
from hosts.inventory.load import load_inventory
from hosts.series.listen import FleetSeries
from hosts.tasks import viewing
from hosts.tasks.notifying import record
from remote.shared.messages.server import ProcessRef
from remote.shared.processes import find
from tests.fleet.extraction.conftest import LENGTHS, RUN, Site

PATIENCE_SECONDS = 120.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address that holds a secret, and what was posted to it."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/?secret=s3cr3t", received
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def watched(site: Site, webhook: tuple[str, list[dict[str, Any]]]) -> Iterator[Site]:
    """The site with prices, a webhook, and servers; its recorders are ended afterwards."""
    text = site.inventory.read_text()
    more = f"  cost_per_hour: 24.5\n  notify: {{webhook: '{webhook[0]}'}}\n"
    site.inventory.write_text(text.replace("  parity_rate: 0\n", f"  parity_rate: 0\n{more}"))
    for name in ("a", "b"):
        site.serve(name)
    yield site
    for lock in site.root.glob("*/recorder/lock"):
        if content := lock.read_text():
            process = find(ProcessRef.model_validate(json.loads(content)["process"]))
            if process is not None:
                os.kill(process.pid, signal.SIGTERM)
                process.wait(30)


def test_hosts_notify_of_the_end_while_no_laptop_command_runs(
    watched: Site, webhook: tuple[str, list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = watched.fleet()
    recorders = record(fleet, notify=True, run=RUN)
    assert [outcome.result.notify_problem for outcome in recorders] == ["", ""]
    started = start(fleet, RUN)
    assert all(outcome.ok for outcome in started.outcomes)
    fleet.close()  # the laptop is closed

    ended: Callable[[], list[dict[str, Any]]] = lambda: [one for one in webhook[1] if one["event"] == "finished"]  # noqa: E731
    until(lambda: len(ended()) == 2, "a notification of the end from each host")
    assert {(one["host"], one["subject"]) for one in ended()} == {("a", f"run {RUN}"), ("b", f"run {RUN}")}
    assert "records done" in ended()[0]["message"]
    written = [path.read_text(errors="replace") for path in watched.root.glob("?/recorder/recorder.log")]
    assert "finished" in "".join(written)
    assert "s3cr3t" not in "".join(written)

    with FleetSeries(watched.fleet(), RUN) as series:
        until(lambda: series.all_heard and series.view().is_over, "a fleet that is done")
        view = series.view()
    assert (view.done, view.assigned) == (len(LENGTHS), len(LENGTHS))
    assert view.bill.spent is not None
    assert {"started", "finished"} <= {event.kind for _, event in view.events(50)}

    records = asked(watched.fleet(), RUN)
    assert sum(sum(one.account.lengths.counts) for one in records if one.account) == len(LENGTHS)
    assert all(one.points and not one.problem for one in records)
    keep_all(watched.fleet(), RUN, tmp_path / "pulled")
    assert [one.host for one in kept(tmp_path / "pulled", RUN)] == ["a", "b"]

    viewing.watch(Context(), hosts="all", inventory=str(watched.inventory))
    lines = capsys.readouterr().out.splitlines()
    assert f"run {RUN}: {len(LENGTHS)} of {len(LENGTHS)} records" in lines[-1]
    page = tmp_path / "report.html"
    viewing.report(Context(), hosts="all", run=RUN, out=str(page), inventory=str(watched.inventory), json=True)
    assert json.loads(capsys.readouterr().out)["verdict"] == "complete"
    assert "inline" not in page.read_text()[:100]
    viewing.report(
        Context(),
        run=RUN,
        hosts="all",
        out=str(page),
        source=str(tmp_path / "pulled"),
        inventory=str(watched.inventory),
    )
    assert f"{len(LENGTHS)} of {len(LENGTHS)} records are done" in capsys.readouterr().out


def test_a_run_that_nobody_knows_and_a_missing_folder_are_wrong_usage(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, said in (
        ({"run": "other", "out": str(tmp_path / "x.html")}, "None of these hosts knows the run 'other'"),
        ({"run": RUN, "out": str(tmp_path / "no" / "x.html")}, "does not exist"),
        ({"run": RUN, "source": str(tmp_path)}, "has no data for a report"),
    ):
        with pytest.raises(SystemExit) as ended:
            viewing.report(Context(), hosts="all", inventory=str(site.inventory), **given)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


def test_a_missing_extra_is_named_in_one_sentence(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    monkeypatch.delitem(sys.modules, "hosts.report.page", raising=False)
    with pytest.raises(SystemExit) as ended:
        viewing.report(Context(), hosts="all", run=RUN, inventory=str(site.inventory))
    assert ended.value.code == 2
    assert "needs the extra [watch]" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "textual.app", None)
    monkeypatch.delitem(sys.modules, "hosts.screen.app", raising=False)
    from hosts.errors import UsageError

    with pytest.raises(UsageError, match=r"needs the extra \[watch\]"):
        viewing._draw(site.fleet(), RUN)


def test_the_inventorys_new_settings_are_read_and_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(
        "hosts: {a: {idle_stop: 30min, cost_per_hour: 24.5, notify: {stalled_after: 2h, webhook: 'https://hooks.slack.com/x'}}}"
    )
    host = load_inventory(path).hosts["a"]
    assert (host.idle_stop, host.cost_per_hour, host.notify.stalled_after) == (1800.0, 24.5, 7200.0)
    assert host.notify.posts_as == "slack"
    for wrong in ("idle_stop: soon", "idle_stop: 5s", "cost_per_hour: -1", "notify: {form: xml}"):
        path.write_text(f"hosts: {{a: {{{wrong}}}}}")
        with pytest.raises(Exception, match=wrong.split(":")[0]):
            load_inventory(path)
