"""Fixtures for end-to-end tests: a private sshd with a hostile home, and a whole practice fleet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hosts.inventory.model import Host
from hosts.practice import fleet
from hosts.practice.paths import PracticePaths
from hosts.practice.ports import ADDRESS
from hosts.practice.sshd import PrivateSshd

HOSTILE_NAME = 'it\'s a "home" $HOME; echo \N{SNOWMAN}'


@dataclass(frozen=True)
class SshHost:
    """A running sshd and the inventory's entry for it; its Python is the engine's."""

    sshd: PrivateSshd
    host: Host
    port: int


def write_inventory(folder: Path, host: SshHost, workdir: str) -> Path:
    """Write an inventory whose one host `box` is the private sshd, for commands that are typed; return its path."""
    keys = ("address", "ssh_port", "identity_file", "known_hosts", "ssh_config", "python", "gpus", "tp")
    own = {key: getattr(host.host, key) for key in keys}
    path = folder / "inventory.yaml"
    path.write_text(json.dumps({"hosts": {"box": {**own, "workdir": workdir, "model": "/m", "layers": [1]}}}))
    return path


@pytest.fixture(scope="session")
def private_sshd(tmp_path_factory: pytest.TempPathFactory, clone: Path) -> Iterator[SshHost]:
    """One sshd for the whole session, whose home's name holds spaces, quotes and a snowman."""
    folder = tmp_path_factory.mktemp("sshd")
    sshd = PrivateSshd(folder / "etc", folder / HOSTILE_NAME)
    ref, port = sshd.start()
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(sshd.known_hosts_line(port))
    host = Host(
        name="private",
        address=ADDRESS,
        ssh_port=port,
        identity_file=str(sshd.client_key),
        known_hosts=str(known_hosts),
        ssh_config=str(folder / "no-ssh-config"),
        python=str(PracticePaths(clone).engine_python),
        gpus=0,
        tp=1,
    )
    yield SshHost(sshd, host, port)
    sshd.stop(ref)


@pytest.fixture(scope="session")
def practice_root(tmp_path_factory: pytest.TempPathFactory, clone: Path, tiny_model_path: Path) -> Path:
    """A clone's stand-in with this clone's engine and models, and a `.practice` of its own."""
    root = tmp_path_factory.mktemp("practice") / "a 'clone'"
    (root / ".practice").mkdir(parents=True, mode=0o700)
    (root / ".engine").symlink_to(clone / ".engine")
    (root / ".practice" / "models").symlink_to(tiny_model_path.parent)
    return root


@pytest.fixture(scope="session")
def practice_fleet(practice_root: Path) -> Iterator[PracticePaths]:
    """Two practice hosts, up; their inventory is `practice_fleet.inventory`."""
    fleet.up(practice_root, hosts=2)
    yield PracticePaths(practice_root)
    fleet.down(practice_root)
