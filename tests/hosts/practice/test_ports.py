"""Reserved ports are taken by no outgoing connection, no other process of Roost and no present listener."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hosts.errors import HostError
from hosts.practice import ports

SYSTEMS_CHOICE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_no_outgoing_connection_gets_a_reserved_port() -> None:
    lowest = int(SYSTEMS_CHOICE.read_text().split()[0]) if SYSTEMS_CHOICE.exists() else 32_768
    assert ports.BLOCKS.start >= 1024
    assert ports.BLOCKS.stop <= lowest


def test_a_block_stays_reserved_until_its_process_ends(clone: Path) -> None:
    program = (
        "import sys; from hosts.practice import ports\n"
        "ports.BLOCKS = range(int(sys.argv[1]), int(sys.argv[1]) + ports.BLOCK, ports.BLOCK)\n"
        "print(ports.free_port(), flush=True); sys.stdin.read()"
    )
    block = ports.free_port()
    command = [sys.executable, "-c", program, str(block)]
    refused = subprocess.run(command, cwd=clone, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert "are all in use" in refused.stderr

    ports._reserved.pop().release()
    with subprocess.Popen(command, cwd=clone, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == f"{block}\n"
        assert not _can_reserve(block)
        owner.communicate()
    assert _can_reserve(block)


def test_a_block_with_a_port_in_use_is_not_reserved() -> None:
    first, second = ports.free_ports(2)
    ports._reserved.pop().release()
    with socket.create_server((ports.ADDRESS, second)):
        assert not _can_reserve(first)
    assert _can_reserve(first)


def _can_reserve(block: int) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "BLOCKS", range(block, block + ports.BLOCK, ports.BLOCK))
        try:
            return ports.free_port() == block
        except HostError:
            return False
