"""NCCL's own logs, recorded on two H200s with NCCL 2.28.9, show its choices and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote.shared.messages.tune import CollectiveChoice
from remote.tune.nccl_log import read_choice

LOGS = Path(__file__).parent / "logs"


def choice(name: str) -> CollectiveChoice:
    return read_choice([(LOGS / f"{name}.log").read_text()] * 2)


@pytest.mark.parametrize(
    ("name", "transport", "channels"),
    [("untouched", "P2P/CUMEM", 24), ("LL-Ring", "P2P/CUMEM", 16), ("no-P2P", "SHM/direct/direct", 4)],
)
def test_the_transport_and_the_channels_are_what_nccl_reports(name: str, transport: str, channels: int) -> None:
    read = choice(name)
    assert (read.version, read.transports, read.channels) == ("2.28.9+cuda13.0", [transport], channels)


def test_the_algorithm_and_protocol_of_each_size_are_reported_once() -> None:
    read = choice("LL-Ring")
    assert "AllReduce 29360128 B: RING LL" in read.algorithms
    assert len(read.algorithms) == len(set(read.algorithms))
    assert read.set_by_environment["NCCL_ALGO"] == "Ring"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Tree", "no algorithm/protocol available for function AllGather"),
        ("unknown-protocol", 'Unrecognized element token "Nonsense"'),
        ("threads-out-of-range", "Invalid NCCL_NTHREADS 7 (must be a multiple of 32)"),
    ],
)
def test_a_value_that_nccl_refuses_or_ignores_is_reported_in_its_own_words(name: str, said: str) -> None:
    (warning,) = choice(name).warnings
    assert said in warning


def test_noise_about_plugins_and_topology_is_no_warning() -> None:
    assert choice("untouched").warnings == []


@pytest.mark.parametrize(
    ("path", "link"), [("NVL/PIX", "NVLink"), ("SYS/PHB", "PCIe through both CPUs"), ("C2C/SYS", "C2C")]
)
def test_the_ring_s_way_between_gpus_is_named(path: str, link: str) -> None:
    start = "box:1:1 [0] NCCL INFO Pattern"
    rest = "crossNic 0, nChannels 12, bw 20.000000/20.000000, type"
    lines = [f"{start} 4, {rest} {path}, sameChannels 1", f"{start} 1, {rest} LOC/LOC, sameChannels 1"]
    assert read_choice(["\n".join(lines)]).link == link
