"""Processes in the way of a server are named with their reasons, and similar processes are not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from remote.context import Context
from remote.servers.lifecycle import ending
from remote.servers.lifecycle.stop import stop
from remote.servers.probing import handles
from remote.servers.probing.gpu import Gpu, parse_smi
from remote.servers.probing.obstacles import find_obstacles
from remote.servers.probing.sglang_process import is_sglang_argv
from remote.shared.messages.server import Needs, ServerState, StopRequest
from remote.shared.paths import Workdir
from remote.shared.processes import find
from tests.remote.servers.states import server_of, supervisor_of

Start = Callable[..., ServerState]


@pytest.mark.parametrize(
    ("executable", "command"),
    [
        ("python3.12", "python -m sglang.launch_server --model-path /m"),
        ("python3", "/usr/bin/python3 -u -X faulthandler -m sglang.launch_server"),
        ("python3", "python3 /opt/sglang/launch_server.py --tp 8"),
        ("python3", "python3 /usr/local/bin/sglang serve --model-path /m"),
        ("python3", "sglang::scheduler_TP3"),
        ("python3.11", "sglang::detokenizer"),
    ],
)
def test_sglang_servers_are_recognised(executable: str, command: str) -> None:
    assert is_sglang_argv(executable, command.split(" "))


@pytest.mark.parametrize(
    ("executable", "command"),
    [
        ("tail", "tail -f /root/sglang.launch_server.log"),
        ("bash", "bash -c python -m sglang.launch_server"),
        ("python3", "python3 -c pass -m sglang.launch_server"),
        ("python3", "python3 watch.py -m sglang.launch_server"),
        ("python3", "python3 -m sglang.bench_serving"),
        ("python3", "python3 -m pytest sglang/launch_server.py"),
        ("python3", "python3 /usr/local/bin/sglang generate"),
        ("vim", "sglang::scheduler"),
        ("python3", ""),
    ],
)
def test_processes_that_only_mention_sglang_are_not_recognised(executable: str, command: str) -> None:
    assert not is_sglang_argv(executable, command.split(" "))


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python that holds `expression` until the test ends."""
    started = []

    def hold(expression: str) -> subprocess.Popen[str]:
        imports = "import mmap, os, socket, subprocess, sys"
        code = f"{imports}\nheld = {expression}\nprint('held', flush=True)\nsys.stdin.read()"
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.communicate("")


def test_open_and_mapped_files_and_the_folder_itself_are_seen(
    holding: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "a file").write_bytes(b"x" * 4096)
    opened = holding(f"open({str(tmp_path / 'a file')!r})")
    mapped = holding(f"(lambda f: (mmap.mmap(f.fileno(), 0, prot=1), f.close()))(open({str(tmp_path / 'a file')!r}))")
    inside = holding(f"os.chdir({str(tmp_path)!r})")
    held = {process.pid: paths for process, paths in handles.holders_of(set(), (str(tmp_path),))}
    assert held[opened.pid] == held[mapped.pid] == {str(tmp_path / "a file")}
    assert held[inside.pid] == {str(tmp_path)}


def test_holders_of_the_port_and_the_dump_directory_are_named_with_each_reason(
    holding: Callable[..., subprocess.Popen[str]], tmp_path: Path, free_port: int
) -> None:
    dump = tmp_path / "dump"
    dump.mkdir()
    taker = holding(f"(socket.create_server(('', {free_port})), os.open({str(dump)!r}, os.O_RDONLY))")
    needs = [Needs(server="main", port=free_port, dump_dir=str(dump))]
    found = {holder.process.pid: holder for holder in find_obstacles(needs, [], everything=False)}
    assert found[taker.pid].holds == [f"port {free_port}", f"dump directory {dump}"]
    row = found[taker.pid].row({taker.pid: 5 << 30})
    assert (row.pid, row.gpu_bytes, row.owner) == (taker.pid, 5 << 30, "")
    assert row.command.startswith(sys.executable)


def test_a_log_follower_in_the_dump_directory_is_left_alone(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "some.log").touch()
    follower = subprocess.Popen(["tail", "-f", str(tmp_path / "some.log")])
    try:
        assert ending.wait_until(lambda: str(tmp_path / "some.log") in handles.held_paths(follower.pid), 10)
        needs = [Needs(server="main", port=free_port, dump_dir=str(tmp_path))]
        assert find_obstacles(needs, [], everything=False) == []
    finally:
        follower.kill()
        follower.wait()


def test_a_process_charged_with_memory_of_a_needed_gpu_is_named(
    holding: Callable[..., subprocess.Popen[str]], free_port: int
) -> None:
    user, elsewhere = holding("None"), holding("None")
    gpus = [
        Gpu(0, "H200", 150 << 30, 70 << 30, {user.pid: 70 << 30, 2**22 + 1: 1 << 30}),
        Gpu(1, "H200", 150 << 30, 1 << 20, {elsewhere.pid: 1 << 20}),
    ]
    found = find_obstacles([Needs(server="main", port=free_port, gpus=[0])], gpus, everything=False)
    assert [(holder.process.pid, holder.holds) for holder in found] == [(user.pid, ["/dev/nvidia0"])]


@pytest.mark.parametrize("session", ["its own", "opened outside of the PID namespace"])
def test_a_server_on_another_gpu_is_not_in_the_way_though_it_holds_all_device_nodes(
    holding: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free_port: int,
    session: str,
) -> None:
    """As an H200 box shows it: CUDA opens every GPU's node, and a server's launcher is charged nothing at all."""
    nodes = [tmp_path / "nvidia0", tmp_path / "nvidia1"]
    for node in nodes:
        node.touch()
    monkeypatch.setattr(Gpu, "node", property(lambda gpu: str(nodes[gpu.index])))
    opened = f"[open(node) for node in {[str(node) for node in nodes]!r}]"
    rank_of = f"subprocess.Popen([sys.executable, '-c', {f'import sys; held = {opened}; sys.stdin.read()'!r}])"
    launcher = holding(f"(os.setsid(), {opened}, {rank_of})")
    rank = psutil.Process(launcher.pid).children()[0]
    assert ending.wait_until(lambda: str(nodes[1]) in handles.held_paths(rank.pid), 10)
    idler = holding(f"(os.setsid(), {opened})")
    needs = [Needs(server="main", port=free_port, gpus=[1])]
    if session != "its own":
        monkeypatch.setattr(os, "getsid", lambda pid: 0)

    def named(*charged: dict[int, int]) -> set[int]:
        gpus = [Gpu(place, "H200", 150 << 30, 0, mine) for place, mine in enumerate(charged)]
        return {holder.process.pid for holder in find_obstacles(needs, gpus, everything=False)}

    assert named({rank.pid: 70 << 30}, {}) == {idler.pid}
    assert named({rank.pid: 70 << 30}, {rank.pid: 1 << 30}) == {rank.pid, launcher.pid, idler.pid}
    assert named({}, {}) == {rank.pid, launcher.pid, idler.pid}, "where the driver tells nothing, all are named"


def test_nvidia_smi_rows_become_gpus_even_where_memory_is_not_told() -> None:
    rows = [["0", "GPU-a", "NVIDIA H200", "143771", "71000"], ["1", "GPU-b", "NVIDIA H200", "143771", "4"]]
    apps = [["GPU-a", "4711", "70000"], ["GPU-a", "4712", "[N/A]"], ["GPU-b", "[N/A]", "[N/A]"]]
    first, second = parse_smi(rows, apps)
    assert (first.used_bytes, first.processes) == (71000 << 20, {4711: 70000 << 20, 4712: 0})
    assert not first.is_idle
    assert second.is_idle
    assert "pid 4711, pid 4712" in first.describe_charge()


def test_another_workdirs_server_in_the_way_is_named_and_survives_without_force(
    start: Start, until: Start, context: Context, tmp_path: Path, free_port: int
) -> None:
    start(restart=True)
    ready = until("ready")
    other = Context(Workdir(tmp_path / "other"), context.report)
    request = StopRequest(needs=[Needs(server="main", port=free_port)])
    result = stop(request, other)
    named = {row.pid: row for row in result.others}
    assert set(named) == {server_of(ready).pid, supervisor_of(ready).pid}
    assert named[server_of(ready).pid].owner == f"main in {context.workdir.root}"
    assert not result.forced
    assert find(ready.server) is not None


def test_force_ends_exactly_what_was_listed(
    start: Start,
    until: Start,
    context: Context,
    tmp_path: Path,
    free_port: int,
    holding: Callable[..., subprocess.Popen[str]],
) -> None:
    start(restart=True)
    ready = until("ready")
    bystander = holding("None")
    other = Context(Workdir(tmp_path / "other"), context.report)
    request = StopRequest(needs=[Needs(server="main", port=free_port)], force=True)
    listed = {row.pid for row in stop(request.model_copy(update={"dry_run": True}), other).others}
    result = stop(request, other)
    assert {row.pid for row in result.others} == listed == {server_of(ready).pid, supervisor_of(ready).pid}
    assert result.forced
    assert result.remaining == []
    assert "does not reap it" in " ".join(result.notes), "the test itself is the dead supervisor's parent"
    assert find(ready.server) is None
    assert find(ready.supervisor) is None
    assert bystander.poll() is None
    assert os.getpid() not in listed
