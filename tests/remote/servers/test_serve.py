"""`serve` on real SGLang: refusals before a start, real readiness, no second start, and a prompt report of the end."""

from __future__ import annotations

import io
import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from hosts.inventory.servers import flag_arguments
from hosts.practice.ports import free_port
from hosts.practice.serving import CONTEXT_LENGTH, ENVIRONMENT, FLAGS, MAX_RUNNING_REQUESTS
from remote.context import Context
from remote.model_digest import model_digest
from remote.report import Report
from remote.servers.lifecycle import ending, records
from remote.servers.lifecycle.serve import serve
from remote.servers.lifecycle.stop import stop
from remote.servers.probing import pulse
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.server import (
    CaptureSpec,
    ServeRequest,
    ServerSpec,
    ServersRequest,
    ServerState,
    StopRequest,
)
from remote.shared.paths import Workdir
from remote.shared.processes import find, members
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import register, withdraw
from tests.attacks.stranger import needs_root, open_to_all, run_as
from tests.remote.servers.states import server_of

pytestmark = pytest.mark.engine

DEAD_SECONDS = 30.0
CHANGING = (
    *("/update_weights_from_disk", "/update_weights_from_tensor", "/init_weights_update_group", "/configure_logging"),
    *("/pause_generation", "/continue_generation", "/release_memory_occupation", "/set_internal_state"),
)
"""What another user of the host could change a running server by."""


POISON = """
port, model = sys.argv[1:]
body = '{"model_path": "' + model + '"}'
for path in ("/update_weights_from_disk", "/update_weights_from_tensor", "/flush_cache"):
    for key in ("", "Authorization: Bearer " + "0" * 64 + "\\r\\n"):
        head = f"POST {path} HTTP/1.1\\r\\nHost: h\\r\\nContent-Length: {len(body)}\\r\\n"
        head += "Content-Type: application/json\\r\\n"
        with socket.socket() as connection:
            connection.connect(("127.0.0.1", int(port)))
            connection.sendall((head + key + "Connection: close\\r\\n\\r\\n" + body).encode())
            print(connection.recv(64).split()[1].decode())
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    made = Context(Workdir(tmp_path_factory.mktemp("it's a host")), Report(io.StringIO()), "tester@laptop")
    yield made
    stop(StopRequest(grace_seconds=5.0), made)


@pytest.fixture(scope="module")
def spec(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> ServerSpec:
    return ServerSpec(
        mode="extract",
        model=str(tiny_model_path),
        port=free_port(),
        flags=flag_arguments({**FLAGS, "context-length": CONTEXT_LENGTH, "max-running-requests": MAX_RUNNING_REQUESTS}),
        env={**ENVIRONMENT, "HF_TOKEN": "hf_unspeakable"},
        capture=CaptureSpec(
            layers=[1, 3, 5],
            dump_dir=str(tmp_path_factory.mktemp("dumps") / "sglang hs"),
            high_water_bytes=64 << 20,
            pinned_bytes=16 << 20,
        ),
        ready_timeout_seconds=240.0,
    )


@pytest.fixture(scope="module")
def running(here: Context, spec: ServerSpec) -> ServerState:
    return serve(ServeRequest(servers=[spec]), here).servers[0]


def _states(running: ServerState, attempt: int) -> torch.Tensor:
    """What the server captures of one short prompt, asked with its key."""
    assert running.capture is not None
    dumps, rid = Path(running.capture.dump_dir), RequestId(f"probe{attempt}", 0, attempt, 8)
    register(dumps, rid.nonce)
    body = {"rid": str(rid), "input_ids": list(range(10, 18)), "sampling_params": {"max_new_tokens": 1}}
    _post(running, body)
    dump = dumps / f"{rid}.safetensors"
    try:
        assert ending.wait_until(dump.exists, DEAD_SECONDS)
        return load_file(dump)["hidden_states"]
    finally:
        dump.unlink(missing_ok=True)
        withdraw(dumps, rid.nonce)


def _post(running: ServerState, body: Mapping[str, object]) -> None:
    """Have the server generate, with its key."""
    name, _, value = Path(running.authorization).read_text().strip().partition(": ")
    url, headers = f"http://127.0.0.1:{running.port}/generate", {"Content-Type": "application/json", name: value}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as answer:
        assert answer.status == 200


def said(context: Context) -> str:
    stream = context.report._stream
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def changed(spec: ServerSpec, **values: object) -> ServeRequest:
    return ServeRequest(servers=[spec.model_copy(update=values)])


def test_an_unknown_flag_names_its_nearest_neighbour_and_starts_nothing(here: Context, spec: ServerSpec) -> None:
    with pytest.raises(UsageError, match="--disable-radix-cahe") as caught:
        serve(changed(spec, flags=[*spec.flags, "--disable-radix-cahe"]), here)
    assert "--disable-radix-cache" in caught.value.remedy
    assert records.names(here.workdir) == []


def test_a_dry_run_shows_command_and_environment_without_secrets(here: Context, spec: ServerSpec) -> None:
    plan = serve(ServeRequest(servers=[spec], dry_run=True), here).planned[0]
    assert f"--port={spec.port}" in plan.command
    assert plan.env["HF_TOKEN"] == "***"
    assert plan.env["SGLANG_USE_CPU_ENGINE"] == "1"
    assert not here.workdir.servers.exists()


def test_a_server_is_ready_once_a_generation_came_back_and_its_capture_is_right(
    running: ServerState, here: Context
) -> None:
    assert running.status == "ready"
    assert running.sglang == "0.5.23"
    assert "POST /generate HTTP/1.1" in Path(running.log).read_text()
    assert "4 slots equal their boundaries" in running.canary
    assert running.capture is not None
    assert running.capture.boundaries == [1, 3, 5, 6]
    assert "--disable-radix-cache" in running.command
    assert said(here).count("weights loaded") == 1
    assert "'api_key': '****" in Path(running.log).read_text()
    secret = [file for file in here.workdir.root.rglob("*") if file.is_file() and b"hf_unspeak" in file.read_bytes()]
    assert secret == []


def _ask(port: int, path: str, *options: str) -> int:
    """The HTTP status that curl sees; an empty JSON object is posted."""
    curl = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Content-Type: application/json", "-d", "{}"]
    url = f"http://127.0.0.1:{port}{path}"
    return int(subprocess.run([*curl, *options, url], stdout=subprocess.PIPE, text=True, check=True).stdout)


def test_without_the_key_only_health_answers(running: ServerState, here: Context) -> None:
    said = {path: _ask(running.port, path) for path in (*CHANGING, "/generate", "/abort_request", "/flush_cache")}
    assert said == dict.fromkeys(said, 401)
    assert _ask(running.port, "/health_generate", "-G") == 200
    assert running.capture is not None
    assert [path.name for path in Path(running.capture.dump_dir).iterdir() if path.name[0] != "."] == []


def test_the_key_s_file_opens_generation_to_curl_and_the_weights_to_nobody(running: ServerState) -> None:
    key = ("-H", f"@{running.authorization}")
    assert _ask(running.port, "/v1/models", "-G", *key) == 200
    assert _ask(running.port, "/update_weights_from_disk", *key) == 401
    assert Path(running.authorization).stat().st_mode & 0o777 == 0o600


def test_a_server_on_one_host_listens_on_loopback_alone(running: ServerState, here: Context) -> None:
    """torch's rendezvous would listen on every interface; a file takes its place."""
    listening = [
        connection.laddr
        for process in members(server_of(running), running.mark)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert running.port in [port for _, port in listening]
    assert {ipaddress.ip_address(ip).is_loopback for ip, _ in listening} == {True}
    assert here.workdir.server("main").rendezvous.stat().st_size > 0


@needs_root
def test_another_user_s_weights_do_not_come_into_a_running_server(running: ServerState, tmp_path: Path) -> None:
    """What a local user once did: a copy of the model with one layer scaled, and one call to the server's port."""
    mine = Path(shutil.copytree(running.model, open_to_all(tmp_path / "mallory") / "model"))
    for file in mine.glob("*.safetensors"):
        scaled = {name: value * 3 if ".layers.2." in name else value for name, value in load_file(file).items()}
        save_file(scaled, file, metadata={"format": "pt"})
    before = _states(running, 1)
    said = run_as(POISON, str(running.port), str(mine))
    assert said.split() == ["401"] * 6
    after = _states(running, 2)
    assert torch.equal(before, after)
    assert (
        model_digest(mine, Workdir(tmp_path)) != running.weights == model_digest(Path(running.model), Workdir(tmp_path))
    )


def test_the_key_is_in_no_process_list_environment_log_or_record(running: ServerState, here: Context) -> None:
    paths = here.workdir.server("main")
    secrets = [v.encode() for k, v in json.loads(paths.config.read_bytes()).items() if k.endswith("api-key")]
    assert len(secrets) == 2
    seen = b"".join(
        Path(f"/proc/{process.pid}/{what}").read_bytes()
        for process in members(server_of(running), running.mark)
        for what in ("cmdline", "environ")
    )
    files = {f for f in here.workdir.root.rglob("*") if f.is_file()} - {paths.config, paths.authorization}
    assert not [secret for secret in secrets if secret in seen + b"".join(f.read_bytes() for f in files)]


def test_the_canary_leaves_nothing_in_the_dump_directory(running: ServerState) -> None:
    assert running.capture is not None
    left = [path.name for path in Path(running.capture.dump_dir).iterdir() if not path.name.startswith(".")]
    assert left == []


def test_serving_again_finds_the_running_server(running: ServerState, here: Context, spec: ServerSpec) -> None:
    again = serve(ServeRequest(servers=[spec]), here).servers[0]
    assert again.server == running.server


def test_another_command_under_the_same_name_is_refused(running: ServerState, here: Context, spec: ServerSpec) -> None:
    with pytest.raises(HostError, match="with another command has been running since"):
        serve(changed(spec, flags=[*spec.flags, "--log-level-http=warning"]), here)
    assert find(running.server) is not None


def test_a_second_server_on_a_taken_port_is_refused_and_the_holder_named(
    running: ServerState, here: Context, spec: ServerSpec
) -> None:
    with pytest.raises(HostError, match=rf"Port {spec.port} is taken by pid {server_of(running).pid} "):
        serve(changed(spec, name="second", capture=None), here)


def test_serving_again_asks_the_running_server_for_a_generation(
    running: ServerState, here: Context, spec: ServerSpec
) -> None:
    again = serve(ServeRequest(servers=[spec]), here).servers[0]
    assert "4 slots equal their boundaries" in again.canary
    assert again.canary.endswith("asked again just now")


def test_another_mode_is_refused_before_sglang_is_asked(running: ServerState, here: Context, spec: ServerSpec) -> None:
    began = time.monotonic()
    with pytest.raises(HostError, match=r"in mode 'extract' \(not in 'serve', as asked for\) has been running since"):
        serve(changed(spec, mode="serve", capture=None), here)
    assert time.monotonic() - began < 2.0


def test_a_frozen_scheduler_is_named_by_serve_and_status_and_a_restart_starts_anew(
    running: ServerState, here: Context, spec: ServerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "SERVE_SECONDS", 4.0)
    monkeypatch.setattr(pulse, "LOOK_SECONDS", 2.0)
    monkeypatch.setattr(pulse, "MOVED_SECONDS", 0.0)
    (scheduler,) = [p for p in members(server_of(running), running.mark) if p.name().startswith("sglang::sched")]
    scheduler.suspend()
    wedged = (
        rf"Server 'main' is wedged: .* no generation came back.*sglang::scheduler.*\(pid {scheduler.pid}\) is frozen"
    )
    with pytest.raises(HostError, match=wedged) as caught:
        serve(ServeRequest(servers=[spec]), here)
    assert "`inv restart --mode extract`" in caught.value.remedy
    (report,) = records.servers(ServersRequest(ask=True), here).servers
    assert re.search(wedged, report.problem)
    (fresh,) = serve(ServeRequest(servers=[spec], restart=True), here).servers
    assert fresh.server != running.server
    assert find(running.server) is None


def test_a_frozen_detokenizer_is_named_and_a_restart_starts_anew(
    here: Context, spec: ServerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("SERVE_SECONDS", 4.0), ("LOOK_SECONDS", 2.0), ("MOVED_SECONDS", 0.0)):
        monkeypatch.setattr(pulse, name, seconds)
    running = records.load(here.workdir.server("main"))
    assert running is not None
    (frozen,) = [p for p in members(server_of(running), running.mark) if p.name().startswith("sglang::detok")]
    frozen.suspend()
    wedged = rf"Server 'main' is wedged: .* no generation came back.*sglang::detok.*\(pid {frozen.pid}\) is frozen"
    with pytest.raises(HostError, match=wedged):
        serve(ServeRequest(servers=[spec]), here)
    (report,) = records.servers(ServersRequest(ask=True), here).servers
    assert re.search(wedged, report.problem)
    (fresh,) = serve(ServeRequest(servers=[spec], restart=True), here).servers
    assert fresh.server != running.server


def test_a_killed_rank_ends_the_server_and_the_cause_says_so(here: Context) -> None:
    running = records.load(here.workdir.server("main"))
    assert running is not None
    ranks = [p for p in members(server_of(running), running.mark) if p.name().startswith("sglang::sched")]
    assert len(ranks) == 1
    died = time.time()
    os.kill(ranks[0].pid, signal.SIGKILL)

    def state() -> ServerState:
        loaded = records.load(here.workdir.server("main"))
        assert loaded is not None
        return loaded

    assert ending.wait_until(lambda: state().status == "failed", DEAD_SECONDS)
    print(f"\nsaid {state().ended_at - died:.1f} s after the rank's death: {state().cause}")  # type: ignore[operator]
    assert "was killed by SIGKILL" in state().cause
    assert ending.wait_until(lambda: not members(server_of(running), running.mark), DEAD_SECONDS)
    assert not [rank for rank in ranks if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE]
