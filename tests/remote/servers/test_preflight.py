"""The needs of a start are checked before any server is stopped or started, and each lack is one sentence."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.context import Context
from remote.servers.lifecycle import ending
from remote.servers.lifecycle.command import _devices
from remote.servers.probing import gpu, preflight
from remote.servers.probing.gpu import Gpu
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.server import CaptureSpec, CaptureState, ServerSpec, ServerState
from remote.shared.processes import find
from remote.shared.redact import is_secret, redacted_spec
from tests.remote.servers.states import server_of, supervisor_of

Start = Callable[..., ServerState]


def spec(**values: object) -> ServerSpec:
    return ServerSpec.model_validate({"model": "/m", **values})


def check(context: Context, wanted: ServerSpec) -> None:
    context.workdir.root.mkdir(parents=True, exist_ok=True)
    preflight.check_host(wanted, None, context.workdir.server(wanted.name))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"name": "a", "port": 2}, "both have the name a"),
        ({"name": "b", "port": 1}, "both have the port 1"),
        ({"name": "b", "port": 2, "gpus": [3]}, "both have the GPU 3"),
        ({"name": "b", "port": 2, "tp": 2, "gpus": [4]}, "has tp 2 and 1 GPUs"),
    ],
)
def test_servers_of_one_box_share_nothing(second: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        preflight.check_together([spec(name="a", port=1, gpus=[3]), spec(**second)])


def test_servers_of_one_box_do_not_share_a_dump_directory() -> None:
    capture = CaptureSpec(layers=[1], dump_dir="/dev/shm/x")
    with pytest.raises(UsageError, match="both have the dump directory"):
        preflight.check_together([spec(name=name, port=port, capture=capture) for port, name in enumerate("ab")])


def test_a_server_that_goes_on_keeps_its_gpus_and_dump_directory(prepare: Start) -> None:
    capture = CaptureSpec(layers=[1], dump_dir="/dev/shm/x")
    running = prepare(gpus=[2, 3], name="other")
    with pytest.raises(HostError, match="wants GPU 3, which the running server 'other' uses"):
        preflight.check_neighbours([spec(gpus=[3])], [running])
    held = CaptureState(
        attach="plugin", payload="p", version="1", boundaries=[1, 2], final="pre", dump_dir="/dev/shm/x"
    )
    with pytest.raises(HostError, match="wants the dump directory /dev/shm/x"):
        preflight.check_neighbours([spec(capture=capture)], [running.model_copy(update={"capture": held})])
    preflight.check_neighbours([spec(gpus=[4], capture=capture)], [running])


def test_a_taken_port_names_who_listens(context: Context, free_port: int) -> None:
    named = pytest.raises(HostError, match=rf"Port {free_port} is taken by pid \d+ \(.+\)")
    with socket.create_server(("127.0.0.1", free_port)), named as caught:
        check(context, spec(port=free_port))
    assert "inv free" in caught.value.remedy
    check(context, spec(port=free_port))


def test_promised_gpus_that_are_not_there_are_named(
    context: Context, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "gpus", list)
    with pytest.raises(HostError, match="wants GPUs 0, 1, but this host shows no GPU"):
        check(context, spec(port=free_port, gpus=[0, 1], tp=2))
    monkeypatch.setattr(preflight, "gpus", lambda: [Gpu(0, "H200", 1, 0)])
    with pytest.raises(HostError, match="wants GPU 1, but this host has 0"):
        check(context, spec(port=free_port, gpus=[0, 1], tp=2))


def test_a_ram_disk_below_the_high_water_mark_is_refused_with_both_numbers(
    context: Context, free_port: int, tmp_path: Path
) -> None:
    too_much = shutil.disk_usage(tmp_path).total * 2
    capture = CaptureSpec(layers=[1], dump_dir=str(tmp_path / "dumps"), high_water_bytes=too_much)
    with pytest.raises(HostError, match=r"has [\d.]+ GiB free and the high-water mark is [\d.]+ GiB"):
        check(context, spec(port=free_port, capture=capture))
    assert not (tmp_path / "dumps").exists()


def test_processes_of_a_dead_server_block_a_new_server_by_pid(
    start: Start, until: Start, context: Context, tmp_path: Path
) -> None:
    start("--orphan", str(tmp_path / "orphan"))
    ready = until("ready")
    for ref in (supervisor_of(ready), server_of(ready)):
        os.kill(ref.pid, signal.SIGKILL)
    assert ending.wait_until(lambda: find(ready.server) is None, 10)
    with pytest.raises(HostError, match=rf"still run: {(tmp_path / 'orphan').read_text()}") as caught:
        check(context, spec(port=ready.port))
    assert "inv stop" in caught.value.remedy


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "OPENAI_API_KEY", "KEY", "MINE"])
def test_secrets_are_known_by_name_or_because_the_operator_said_so(name: str) -> None:
    assert is_secret(name, ["MINE"])
    shown = redacted_spec(spec(env={name: "value"}, secrets=["MINE"])).env
    assert shown == {name: "***"}


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "NCCL_PROTO", "SGLANG_MAX_TOKENS", "PYTHONPATH"])
def test_ordinary_variables_are_shown(name: str) -> None:
    assert not is_secret(name)


UUIDS = ("GPU-5e3c8b6a-0d5f-4a4b-9d1e-0c6a3d7f2b11", "GPU-a1b2c3d4-0d5f-4a4b-9d1e-0c6a3d7f2b12")
SLICE = "MIG-7c1f0c2e-3c58-5a7b-8e0a-6f1f0a2b9c3d"


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Gpu(index, "H200", 141 << 30, 0, uuid=uuid) for index, uuid in enumerate(UUIDS)]
    monkeypatch.setattr(gpu, "gpus", lambda: found)
    monkeypatch.setattr(preflight, "gpus", lambda: found)


@pytest.mark.usefixtures("two_gpus")
def test_a_uuid_becomes_the_ordinal_that_sglang_reads_and_a_slice_stays() -> None:
    visible = [_devices(spec(gpus=gpus))["CUDA_VISIBLE_DEVICES"] for gpus in ([UUIDS[1], 0], ["GPU-5e3c8b6a"], [SLICE])]
    assert visible == ["1,0", "0", SLICE]
    with pytest.raises(HostError, match="GPU-ffff is no GPU of this host"):
        _devices(spec(gpus=["GPU-ffff"]))


@pytest.mark.usefixtures("two_gpus")
def test_a_uuid_that_is_not_there_and_a_gpu_under_two_names_are_refused(
    context: Context, free_port: int, prepare: Callable[..., ServerState]
) -> None:
    with pytest.raises(HostError, match=rf"wants GPU GPU-ffff, but this host has {UUIDS[0]}"):
        check(context, spec(port=free_port, gpus=["GPU-ffff"]))
    running = prepare(gpus=[1], name="other")
    with pytest.raises(HostError, match=rf"wants GPU {UUIDS[1]}, which the running server 'other' uses"):
        preflight.check_neighbours([spec(gpus=[UUIDS[1]])], [running])
    preflight.check_neighbours([spec(gpus=[UUIDS[0]])], [running])


@pytest.mark.parametrize(("gpus", "tp"), [([SLICE], 2), ([SLICE, 1], 2), ([SLICE, SLICE[:-1] + "e"], 1)])
def test_a_slice_serves_one_rank_alone(gpus: list[int | str], tp: int) -> None:
    with pytest.raises(UsageError, match="a slice can serve only one rank"):
        preflight.check_together([spec(gpus=gpus, tp=tp)])
    preflight.check_together([spec(gpus=[SLICE], tp=1)])
