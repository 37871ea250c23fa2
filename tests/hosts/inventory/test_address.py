"""Addresses in all written forms, and contradictions, which are reported with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.errors import InventoryError
from hosts.inventory.load import load_inventory
from hosts.inventory.model import Host


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("gpu7", ("gpu7", None, None)),
        ("lab@gpu7", ("gpu7", "lab", None)),
        ("gpu7:2222", ("gpu7", None, 2222)),
        ("ssh://lab@gpu7:2222", ("gpu7", "lab", 2222)),
        ("ssh://gpu7/", ("gpu7", None, None)),
        ("[::1]", ("::1", None, None)),
        ("[fe80::1%eth0]:2222", ("fe80::1%eth0", None, 2222)),
        ("lab@[::1]:22", ("::1", "lab", 22)),
        ("fe80::1", ("fe80::1", None, None)),
    ],
)
def test_an_address_is_split_into_user_host_and_port(address: str, parts: tuple[str, str | None, int | None]) -> None:
    host = Host(name="h", address=address)
    assert (host.address, host.user, host.ssh_port) == parts


def test_equal_values_in_two_places_are_no_contradiction() -> None:
    assert Host(name="h", address="lab@gpu7:2222", user="lab", ssh_port=2222).address == "gpu7"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("user: root", "line 4: address 'lab@gpu7:2222' and user: 'root' contradict each other"),
        ("ssh_port: 22", "line 4: address 'lab@gpu7:2222' and ssh_port: 22 contradict each other"),
    ],
)
def test_a_contradiction_names_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(f"hosts:\n  gpu7:\n    address: lab@gpu7:2222\n    {line}\n")
    with pytest.raises(InventoryError, match="line 4") as caught:
        load_inventory(path)
    assert message in caught.value.message


@pytest.mark.parametrize("address", ["-oProxyCommand=x", "gpu7:port", "[::1", "a b", "lab@-x"])
def test_an_address_never_becomes_an_option_of_ssh(tmp_path: Path, address: str) -> None:
    try:
        host = Host(name="h", address=address)
    except ValueError:
        return
    assert host.address == address


def test_only_the_users_own_home_is_expanded_in_python(tmp_path: Path) -> None:
    assert Host(name="h", python="~/venv/bin/python").python == "~/venv/bin/python"
    with pytest.raises(ValueError, match="full path"):
        Host(name="h", python="~other/bin/python")
