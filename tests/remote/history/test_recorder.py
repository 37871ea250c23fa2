"""The recorder on a host's folder: its histories, its notifications, the faults that it survives, and its process."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from remote.history import telling
from remote.history.lock import holder
from remote.history.recorder import Recorder
from remote.history.start import record
from remote.history.store import HistoryError, to_read
from remote.history.verbs import glance, history
from remote.shared.files import write_whole
from remote.shared.messages.history import (
    GlanceRequest,
    HistoryRequest,
    NotifySettings,
    RecordRequest,
    Settings,
)
from remote.work.lock import run_lock
from tests.remote.extract.standin_process import until
from tests.remote.history.hostfolder import HostFolder


@pytest.fixture
def host(tmp_path: Path) -> HostFolder:
    return HostFolder(tmp_path)


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, object]], list[int]]]:
    """An address, what was posted to it, and the statuses that it answers with, the last one for ever."""
    received: list[dict[str, object]] = []
    statuses = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook?secret=s3cr3t", received, statuses
    server.shutdown()
    thread.join()
    server.server_close()


def told(host: HostFolder, address: str, **more: object) -> None:
    """The settings as the verb `record` leaves them."""
    notify = NotifySettings(webhook=address)
    settings = Settings.model_validate({"host": "gpu1", "notify": notify, "runs": ["trial"], **more})
    write_whole(host.workdir.recorder.settings, settings.model_dump_json().encode())


def look_until(recorder: Recorder, condition: Callable[[], bool], what: str) -> None:
    """Have the recorder look until the condition holds."""

    def looked() -> bool:
        recorder.look()
        return condition()

    until(looked, what)


def kinds(host: HostFolder) -> list[str]:
    """What the server's history says happened; nothing if there is none yet."""
    try:
        with to_read(host.workdir.server("main").history) as kept:
            return [event.kind for event in kept.events()]
    except HistoryError:
        return []


def test_a_run_and_its_server_are_recorded_with_events(host: HostFolder) -> None:
    paths = host.run(counts={"done": 10})
    host.server()
    recorder = Recorder(host.context)
    with run_lock(paths):
        recorder.look()
        host.run(counts={"done": 30}, tokens_per_second=812.5, waited={"paused": 3.0})
        recorder.look()
    host.run(counts={"done": 100}, status="complete")
    recorder.look()
    with to_read(paths.history) as kept:
        points, events = list(kept.points()), kept.events()
    assert [point.values["done"] for point in points] == [10, 30, 100]
    assert points[1].values["tokens_per_second"] == 812.5
    assert points[1].values["waited.paused"] == 3.0
    assert [(event.subject, event.kind) for event in events] == [
        ("run trial", "started"), ("server main", "started"), ("server main", "ready"), ("run trial", "finished"),
    ]  # fmt: skip
    with to_read(host.workdir.server("main").history) as kept:
        assert next(kept.points()).values["ready"] == 1.0


def test_a_run_that_begins_and_ends_between_two_looks_is_not_missed(host: HostFolder) -> None:
    recorder = Recorder(host.context)
    recorder.look()
    paths = host.run(counts={"done": 100}, status="complete")
    recorder.look()
    recorder.look()
    with to_read(paths.history) as kept:
        assert [event.kind for event in kept.events()] == ["started", "finished"]
        assert next(kept.points()).values["done"] == 100


def test_counters_go_on_over_sessions_and_over_a_killed_recorder(host: HostFolder) -> None:
    paths = host.run(backpressure_seconds=4.0)
    with run_lock(paths):
        Recorder(host.context).look()
        host.run(backpressure_seconds=9.0)
        recorder = Recorder(host.context)  # the one before was killed
        recorder.look()
        host.run(backpressure_seconds=2.0, started_at=9.0)  # another session
        recorder.look()
    with to_read(paths.history) as kept:
        waited = [point.values["waited.ramdisk"] for point in kept.points()]
    assert waited == [4.0, 4.0, 6.0]


def test_a_damaged_history_is_set_aside_and_reported(host: HostFolder) -> None:
    paths = host.run()
    paths.history.write_bytes(b"rubbish" * 999)
    with run_lock(paths):
        Recorder(host.context).look()
    with to_read(paths.history) as kept:
        assert "history" in [event.kind for event in kept.events()]
        assert len(list(kept.points())) == 1
    assert "is damaged" in host.said.getvalue()


def test_a_full_disk_loses_no_point(host: HostFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    from remote.history import store

    paths = host.run()
    recorder = Recorder(host.context)

    def full(*_: object, **__: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("database or disk is full")

    with run_lock(paths):
        recorder.look()
        with monkeypatch.context() as patched:
            patched.setattr(store, "_connected", full)
            recorder.look()
            recorder.look()
        recorder.look()
    with to_read(paths.history) as kept:
        assert len(list(kept.points())) == 4
    assert host.said.getvalue().count("could not be written") == 1


def test_a_run_that_was_cleaned_away_meanwhile_is_not_made_again(host: HostFolder) -> None:
    import shutil

    paths = host.run()
    recorder = Recorder(host.context)
    with run_lock(paths):
        recorder.look()
    shutil.rmtree(paths.root)
    recorder.look()
    assert not paths.root.exists()


def test_people_get_one_notification_however_often_the_webhook_refuses(
    host: HostFolder, webhook: tuple[str, list[dict[str, object]], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "RETRY_FIRST_SECONDS", 0.0)
    address, received, statuses = webhook
    statuses[:] = [500, 503, 200]
    told(host, address)
    host.server(status="failed", cause="CUDA out of memory.", start=3)
    host.server(status="ready", start=3)
    recorder = Recorder(host.context)
    recorder.look()
    host.server(status="failed", cause="CUDA out of memory.", start=3)
    look_until(recorder, lambda: len(received) >= 4, "ready, and then a failure that is taken at the third try")
    look_until(recorder, lambda: not recorder._teller.busy, "an empty outbox")
    assert [one["event"] for one in received] == ["ready", "ready", "ready", "failed"]
    assert len({one["id"] for one in received}) == 2
    assert received[-1]["host"] == "gpu1"
    assert received[-1]["message"] == "CUDA out of memory."
    assert "HTTP 500" in host.said.getvalue()
    assert "s3cr3t" not in host.said.getvalue()


def test_a_webhook_that_hangs_delays_nothing(host: HostFolder) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        told(host, f"http://127.0.0.1:{silent.getsockname()[1]}/")
        paths = host.run()
        host.server()
        recorder = Recorder(host.context)
        with run_lock(paths):
            for _ in range(5):
                recorder.look()
        with to_read(paths.history) as kept:
            assert len(list(kept.points())) == 5


def test_a_crash_loop_causes_one_notification_and_is_then_counted(host: HostFolder, tmp_path: Path) -> None:
    told(host, "http://127.0.0.1:9/")
    recorder = Recorder(host.context)
    for start in range(1, 6):
        host.server(status="ready", start=start, restarts=start - 1)
        recorder.look()
        host.server(status="failed", start=start, restarts=start - 1, cause="It crashed.")
        recorder.look()
    waiting = [(one.event.kind) for one in recorder._kept.waiting]
    assert sorted(waiting) == ["failed", "ready", "restarted"]
    assert recorder._kept.kept_back["server main failed"] == 4


def test_notifications_on_disk_are_readable_only_by_their_user(host: HostFolder) -> None:
    told(host, "http://127.0.0.1:9/?secret=s3cr3t")
    host.server()
    Recorder(host.context).look()
    for path in host.workdir.recorder.root.iterdir():
        assert path.stat().st_mode & 0o077 == 0


def test_an_idle_server_is_ended_and_a_needed_one_is_not(host: HostFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    told(host, "http://127.0.0.1:9/", idle_stop_seconds=0.0)
    stopped: list[str] = []
    monkeypatch.setattr(Recorder, "_stop", lambda self, name: stopped.append(name))
    host.server()
    paths = host.run()
    recorder = Recorder(host.context)
    with run_lock(paths):
        for _ in range(3):
            recorder.look()
    assert stopped == []
    look_until(recorder, lambda: bool(stopped), "an idle server that is ended")
    look_until(recorder, lambda: "idle-stopped" in host.said.getvalue(), "an event about it")
    assert stopped[0] == "main"


def test_history_and_glance_return_the_recorded_points(host: HostFolder) -> None:
    paths = host.run(counts={"done": 10})
    host.server()
    recorder = Recorder(host.context)
    with run_lock(paths):
        for done in (10, 20, 30):
            host.run(counts={"done": done}, tokens_per_second=done)
            recorder.look()
        host.said.truncate(0)
        glance(GlanceRequest(once=True), host.context)
    line = json.loads(host.said.getvalue().lstrip("\0").splitlines()[-1])["value"]
    assert line["reading"]["runs"][0]["word"] == "running"
    assert [point["values"]["tokens_per_second"] for point in line["recent"]] == [10, 20, 30]
    assert line["reading"]["gpu_problem"]
    result = history(HistoryRequest(run="trial", series=["done"]), host.context)
    assert result.points == 3
    assert {event.kind for event in result.events} == {"started", "ready"}


def test_a_missing_history_is_reported_and_glance_still_returns_the_run(host: HostFolder) -> None:
    host.run()
    assert "There is no history" in history(HistoryRequest(run="trial"), host.context).problem
    glance(GlanceRequest(run="trial", once=True), host.context)
    told_now = json.loads(host.said.getvalue().splitlines()[-1])["value"]
    assert "There is no history" in told_now["problem"]
    assert told_now["reading"]["runs"][0]["run"] == "trial"


def test_only_one_recorder_runs_and_it_continues_after_a_killed_one(host: HostFolder, clone: Path) -> None:
    host.server()
    request = RecordRequest(host="gpu1")
    first = record(request, host.context)
    try:
        assert first.started
        assert record(request, host.context) == first.model_copy(update={"started": False})
        until(lambda: kinds(host) == ["started", "ready"] and host.workdir.recorder.memory.exists(), "a history")
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: holder(host.context) is None, "the end of the killed recorder")
        second = record(request, host.context)
        assert second.started
        assert second.pid != first.pid
        seen = host.workdir.recorder.memory.stat().st_mtime_ns
        until(lambda: host.workdir.recorder.memory.stat().st_mtime_ns > seen, "a look of the second recorder")
    finally:
        found = holder(host.context)
        if found is not None:
            os.kill(found.process.pid, signal.SIGTERM)
    until(lambda: holder(host.context) is None, "the end of a recorder that was told to end")
    assert kinds(host) == ["started", "ready"]
