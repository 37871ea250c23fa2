"""Recorded output of nvidia-smi, and pids of other containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remote.facts.gpu import _process, topology, versions

FOLDER = Path(__file__).parent / "nvidia_smi"


def _text(name: str) -> str:
    return (FOLDER / name).read_text()


def test_two_gpus_joined_by_nvlink() -> None:
    """As an H200 box printed it (driver 580), terminal escapes in the heading included."""
    found = topology(_text("two_h200_topo.txt"), _text("two_h200_p2p.txt"))
    assert [(link.first, link.second, link.way, link.p2p) for link in found] == [(0, 1, "NV18", "OK")]


def test_network_cards_and_affinities_are_no_gpus() -> None:
    found = topology(_text("four_pcie_topo.txt"), "")
    assert {(link.first, link.second): link.way for link in found} == {
        (0, 1): "PIX",
        (0, 2): "SYS",
        (0, 3): "SYS",
        (1, 2): "SYS",
        (1, 3): "SYS",
        (2, 3): "NODE",
    }
    assert {link.p2p for link in found} == {""}


@pytest.mark.parametrize("text", ["", "Failed to initialize NVML: Driver/library version mismatch\n", "\tGPU0\n"])
def test_no_table_gives_no_links(text: str) -> None:
    assert topology(text, text) == []


def test_driver_and_cuda_stand_in_the_first_lines() -> None:
    assert versions(_text("two_h200.txt")) == ("580.159.04", "13.0")


def test_a_pid_that_does_not_exist_here_belongs_to_somebody_outside() -> None:
    found = _process(2**22 - 1, 5, {})
    assert not found.visible
    assert (found.pid, found.used_bytes, found.command) == (2**22 - 1, 5, "")


def test_a_pid_of_a_process_without_a_gpu_is_another_container_s() -> None:
    assert not _process(os.getpid(), 5, {}).visible
