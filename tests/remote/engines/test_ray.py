"""Ray's engine on the login host: sentences for what cannot work, and what is submitted; no Ray runs here."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from remote.engines.ray import engine
from remote.engines.ray.controller import causes, shortage
from remote.engines.ray.folder import FAILED, LEFT_OUT, OVER, RUNS, Folder, Pool, Slot
from remote.engines.ray.server import Server
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.jobs import RayPool
from remote.shared.paths import RunPaths

HOSTILE = 'it\'s a $(touch hacked) `id` "folder"'
GIVEN: dict[str, Any] = {"address": "http://127.0.0.1:1", "least": 1, "most": 3, "bundle": {"GPU": 8.0, "CPU": 1.0}}


class JobServer(ThreadingHTTPServer):
    """Answers as a job server does, from what a test gives it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.answers: dict[str, tuple[int, object]] = {"/api/version": (200, {"ray_version": "2.60.0"})}
        self.submitted: list[dict[str, Any]] = []
        self.on_submit: Callable[[str], object] = lambda _: None
        self.asked: list[tuple[str, str]] = []
        """Path and authorization of every request."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    server: JobServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((path, self.headers.get("Authorization", "")))
        code, told = self.server.answers.get(path, (404, "no such job"))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode() if not isinstance(told, str) else told.encode())

    def do_POST(self) -> None:
        made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.submitted.append(made)
        job = made["submission_id"]
        self.server.answers[f"/api/jobs/{job}"] = (200, {"status": "RUNNING", "start_time": 1000})
        self.server.on_submit(job)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"submission_id": job}).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def job_server() -> Iterator[JobServer]:
    server = JobServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    jobs = RunPaths(tmp_path / "runs" / "kimi-1").jobs
    jobs.mkdir(parents=True)
    return Folder(jobs)


def pool(**own: Any) -> Pool:
    order = RayPool.model_validate({**GIVEN, **own})
    return engine._pool(order, "roost-kimi-1-0", "kimi-1", Path("/shared/payload"), 40)


def test_no_cluster_at_the_address_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"No Ray job server answers at http://127\.0\.0\.1:1: "):
        Server("http://127.0.0.1:1").version()


@pytest.mark.parametrize("told", ["<html>", '["a list"]'])
def test_another_program_at_the_address_is_a_sentence(job_server: JobServer, told: str) -> None:
    job_server.answers["/api/version"] = (200, told)
    with pytest.raises(UsageError, match="Ray job server"):
        Server(job_server.address).version()


@pytest.mark.parametrize("version", ["1.13.0", "2.8.1", "3.0.0", "", "nightly"])
def test_a_cluster_of_a_version_that_was_never_tried_is_refused(job_server: JobServer, version: str) -> None:
    job_server.answers["/api/version"] = (200, {"ray_version": version})
    with pytest.raises(UsageError, match=r"Roost needs 2\.9 or a later 2\.x"):
        Server(job_server.address).version()


def test_ray_s_own_token_travels_as_a_header(
    job_server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    Server(job_server.address).version()
    assert job_server.asked == [("/api/version", "Bearer secret")]


@pytest.mark.parametrize(("code", "is_open"), [(200, True), (401, False)])
def test_a_cluster_is_open_if_it_answers_without_a_token(job_server: JobServer, code: int, is_open: bool) -> None:
    job_server.answers["/api/jobs/"] = (code, [])
    assert Server(job_server.address).is_open() == is_open


def test_a_refused_token_is_a_sentence(job_server: JobServer) -> None:
    job_server.answers["/api/version"] = (401, "Unauthorized")
    with pytest.raises(UsageError, match="requires a token, and this host has none or a wrong one"):
        Server(job_server.address).version()


def test_a_job_that_the_server_does_not_know_is_not_in_its_queue(job_server: JobServer, folder: Folder) -> None:
    folder.keep_pool(pool(address=job_server.address))
    assert engine.Ray(RunPaths(folder.run)).earlier() == []


def test_rows_join_ray_s_view_with_the_replicas_own(job_server: JobServer, folder: Folder) -> None:
    folder.keep_pool(pool(address=job_server.address))
    folder.keep(Slot("r0", RUNS, "n1", "id", 1, 1, "its server died on n1", 1.0))
    folder.keep(Slot("r2", FAILED, "n3", "id", 4, 4, "its server died on n3", 1.0))
    groups = [{"name": f"roost-kimi-1.{name}", "state": "CREATED"} for name in ("r0", "r1")]
    groups.append({"name": "somebody-else.r0", "state": "CREATED"})
    actors = [{"name": "r0", "state": "ALIVE"}, {"name": "r1", "state": "DEAD"}]
    job_server.answers["/api/jobs/roost-kimi-1-0"] = (200, {"status": "RUNNING", "start_time": 1000})
    job_server.answers["/api/v0/placement_groups"] = (200, {"data": {"result": {"result": groups}}})
    job_server.answers["/api/v0/actors"] = (200, {"data": {"result": {"result": actors}}})
    rows = engine.Ray(RunPaths(folder.run)).rows()
    assert [(row.job, row.state, row.node, row.reason) for row in rows] == [
        ("roost-kimi-1-0", "RUNNING", "", ""),
        ("r0", "RUNNING", "n1", "1 of its attempts failed, the latest because its server died on n1"),
        ("r1", "PENDING", "", "waits for a node with 8 GPU, 1 CPU"),
        ("r2", "FAILED", "n3", "its server died on n3"),
    ]


def test_a_stop_without_a_controller_submits_one_that_withdraws_what_waits(
    job_server: JobServer, folder: Folder
) -> None:
    order = RayPool.model_validate({**GIVEN, "address": job_server.address})
    folder.keep_pool(pool(address=job_server.address))
    (folder.root / "order.json").write_text(order.model_dump_json())
    groups = [{"name": "roost-kimi-1.r0", "state": "PENDING"}]
    job_server.answers["/api/v0/placement_groups"] = (200, {"data": {"result": {"result": groups}}})
    job_server.answers["/api/v0/actors"] = (200, {"data": {"result": {"result": []}}})
    job_server.on_submit = folder.accepted.write_text
    ray = engine.Ray(RunPaths(folder.run))
    assert ray.cancel(dry_run=True) == ["r0"]
    assert not folder.stop.exists()
    assert ray.cancel(dry_run=False) == ["r0"]
    assert folder.stop.exists()
    assert [made["submission_id"] for made in job_server.submitted] == ray.earlier()


def test_a_job_that_failed_later_is_shown_with_its_sentence(job_server: JobServer, folder: Folder) -> None:
    folder.keep_pool(pool(address=job_server.address))
    none: dict[str, Any] = {"data": {"result": {"result": []}}}
    job_server.answers |= {
        "/api/jobs/roost-kimi-1-0": (200, {"status": "FAILED", "message": "exit code 2"}),
        "/api/jobs/roost-kimi-1-0/logs": (200, {"logs": "roost: no node of the Ray cluster has a GPU\n"}),
        "/api/v0/placement_groups": (200, none),
        "/api/v0/actors": (200, none),
    }
    ray = engine.Ray(RunPaths(folder.run))
    (row,) = ray.rows()
    assert (row.state, row.reason) == ("FAILED", "No node of the Ray cluster has a GPU.")
    assert ray.earlier() == []
    assert ray.cancel(dry_run=False) == []


@pytest.mark.parametrize(
    ("nodes", "least", "sentence"),
    [
        ([{"CPU": 4}, {"CPU": 2}], 1, "has a GPU; it has 2 node(s)"),
        ([{"GPU": 4, "CPU": 64}], 1, "the most that its nodes have is 4 GPU, 64 CPU, so Ray would wait for ever"),
        ([], 0, "has a GPU; it has 0 node(s)"),
        ([{"GPU": 8, "CPU": 2}], 2, "1 node(s) of the Ray cluster at http://127.0.0.1:1 have what a replica takes"),
    ],
)
def test_what_ray_would_wait_for_in_vain_is_a_sentence(
    nodes: list[dict[str, float]], least: int, sentence: str
) -> None:
    assert sentence in shortage(nodes, pool(least=least))


@pytest.mark.parametrize("least", [0, 1])
def test_nodes_that_fit_are_enough(least: int) -> None:
    assert shortage([{"GPU": 8, "CPU": 2}, {"CPU": 1}], pool(least=least)) == ""


def test_no_value_of_the_inventory_becomes_shell(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / HOSTILE / "kimi-1")
    order = RayPool.model_validate({**GIVEN, "ray_python": HOSTILE})
    made = engine.Ray(paths)._submission(order, tmp_path / HOSTILE / "payload", "roost-1", "mark")
    entrypoint = str(made["entrypoint"])
    (tmp_path / HOSTILE / "payload").mkdir(parents=True)
    ended = subprocess.run(["sh", "-c", entrypoint], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 127
    assert "roost: the head node cannot run" in ended.stdout
    assert not list(tmp_path.rglob("hacked"))


def test_a_head_node_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    made = engine.Ray(RunPaths(tmp_path / "run"))._submission(
        RayPool.model_validate(GIVEN), tmp_path / "payload", "roost-1", "mark"
    )
    ended = subprocess.run(["sh", "-c", str(made["entrypoint"])], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    refusal = engine._why(ended.stdout, "")
    assert isinstance(refusal, UsageError)
    assert refusal.message.startswith("The head node does not see ")


def test_a_controller_that_is_killed_is_started_again_and_one_that_refuses_is_not(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(
        f"#!/bin/sh\necho started >> {tmp_path}/starts\n[ $(wc -l < {tmp_path}/starts) -ge 3 ] && exit 2\nkill -9 $$\n"
    )
    script.chmod(0o700)
    order = RayPool.model_validate({**GIVEN, "ray_python": str(script)})
    made = engine.Ray(RunPaths(tmp_path / "run"))._submission(order, tmp_path, "roost-1", "mark")
    ended = subprocess.run(["sh", "-c", str(made["entrypoint"])], capture_output=True, text=True, check=False)
    assert (ended.returncode, (tmp_path / "starts").read_text().count("started")) == (2, 3)
    assert "the controller ended with 137 and is started again" in ended.stdout


def test_a_job_that_ends_without_a_word_of_roost_is_a_sentence_with_its_last_line() -> None:
    refusal = engine._why("Traceback\nModuleNotFoundError: No module named 'x'\n\n", "")
    assert isinstance(refusal, HostError)
    assert "ended before it began the run: ModuleNotFoundError: No module named 'x'." in refusal.message


def test_an_attempt_s_number_is_given_once(folder: Folder) -> None:
    taken: list[int] = []
    threads = [threading.Thread(target=lambda: taken.append(folder.next_attempt("r0"))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(20))
    assert folder.next_attempt("r1") == 0


def test_a_new_submission_forgets_ended_replicas_and_a_stop(folder: Folder) -> None:
    folder.stop.touch()
    for name, state in (("r0", RUNS), ("r1", OVER), ("r2", LEFT_OUT)):
        folder.keep(Slot(name, state))
    folder.forget_ended()
    assert not folder.stop.exists()
    assert [slot.name for slot in folder.slots()] == ["r0"]


def test_a_machine_with_another_folder_at_the_same_path_does_not_see_the_run(folder: Folder) -> None:
    assert not folder.sees("mark")
    folder.mark.write_text("another")
    assert not folder.sees("mark")


def test_causes_are_told_once() -> None:
    slots = [Slot("r0", FAILED, cause="no model"), Slot("r1", FAILED, cause="no model"), Slot("r2", FAILED, cause="x")]
    assert causes(slots) == "r0, r1: no model; r2: x"
