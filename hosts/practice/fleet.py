"""The practice fleet: hosts on this machine that differ from real hosts only in their hardware. Laptop's side.

Called by the `inv practice.*` tasks, the demo and the tests. Each host is a private sshd with its own home; its servers
are unmodified SGLang on CPU. Writes `.practice/`, and ends only processes of the practice fleet.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from pydantic import BaseModel, Field, ValidationError

from hosts.errors import HostError, UsageError
from hosts.inventory.load import load_inventory
from hosts.inventory.model import Host
from hosts.practice import processes
from hosts.practice.engine import install
from hosts.practice.inventory import HostFacts, write_inventory
from hosts.practice.leftovers import Running, end_running, running_on
from hosts.practice.models import tiny_model
from hosts.practice.paths import PracticePaths
from hosts.practice.sshd import PrivateSshd
from remote.shared.files import make_directory, write_whole
from remote.shared.messages.server import ProcessRef
from remote.shared.paths import DUMP_MARKER

MOST_HOSTS = 16


class HostState(BaseModel):
    """The last start of one host, which keeps its ports over a restart if they are free."""

    name: str
    ssh_port: int
    server_port: int
    sshd: ProcessRef


class FleetState(BaseModel):
    """`.practice/fleet.json`."""

    hosts: list[HostState] = Field(default_factory=list)


@dataclass(frozen=True)
class PracticeHost:
    """The current state of one practice host."""

    name: str
    ssh_port: int
    up: bool
    """Whether its sshd runs."""
    running: list[Running]
    """The running servers and extractors of its workdir."""


def up(root: Path, hosts: int = 2) -> list[PracticeHost]:
    """Make exactly `hosts` practice hosts run, and write their inventory. Hosts that run already are not restarted.

    `root` is the folder of `practice_root`. Raises HostError if the engine or sshd is missing.
    """
    if not 1 <= hosts <= MOST_HOSTS:
        raise UsageError(f"A practice fleet has 1 to {MOST_HOSTS} hosts, not {hosts}.")
    paths = PracticePaths(root)
    if not paths.engine_python.exists():
        raise HostError(
            f"The practice hosts have no Python with SGLang: {paths.engine_python} does not exist.",
            remedy="Run make engine, or inv practice up.",
        )
    model = tiny_model(root)
    with _locked(paths):
        before = {host.name: host for host in _read(paths).hosts}
        names = [f"practice{number}" for number in range(1, hosts + 1)]
        for name in before.keys() - set(names):
            _take_down(paths, before[name])
        state = FleetState()
        for name in names:
            state.hosts.append(_bring_up(paths, name, before.get(name)))
            write_whole(paths.state, state.model_dump_json(indent=1).encode())
        _write_client_files(paths, state, model)
    return status(root)


def build_engine(root: Path) -> None:
    """Install SGLang for CPU if it is missing. This takes minutes, so pip's output goes to stderr.

    Raises HostError if it cannot be built.
    """
    paths = PracticePaths(root)
    if paths.engine_python.exists():
        return
    folder = paths.engine_python.parents[1]
    script = Path(install.__file__)
    done = subprocess.run([sys.executable, str(script), str(folder)], stdout=sys.stderr, check=False)
    if done.returncode:
        raise HostError(
            f"The practice hosts' Python could not be built in {folder}.",
            remedy="Read pip's messages above, and run the command again.",
        )


def down(root: Path) -> list[str]:
    """End the processes that `up` and later commands started on the practice hosts; return one sentence for each."""
    paths = PracticePaths(root)
    with _locked(paths):
        ended = [line for host in _read(paths).hosts for line in _take_down(paths, host)]
        paths.state.unlink(missing_ok=True)
    return ended


def status(root: Path) -> list[PracticeHost]:
    """Return the state of every practice host. Changes nothing and needs no SSH."""
    paths = PracticePaths(root)
    return [
        PracticeHost(
            name=host.name,
            ssh_port=host.ssh_port,
            up=processes.find(host.sshd) is not None,
            running=running_on(paths.host(host.name).workdir),
        )
        for host in _read(paths).hosts
    ]


def inventory_hosts(root: Path) -> list[Host]:
    """Return the practice hosts of the inventory; raises HostError if the fleet is not up."""
    paths = PracticePaths(root)
    hosts = status(root)
    if not hosts or not all(host.up for host in hosts):
        raise HostError("The practice fleet is not up.", remedy="Run make practice-up.")
    return list(load_inventory(paths.inventory).hosts.values())


@contextmanager
def _locked(paths: PracticePaths) -> Iterator[None]:
    make_directory(paths.folder)
    with FileLock(paths.lock):
        yield


def _read(paths: PracticePaths) -> FleetState:
    try:
        return FleetState.model_validate_json(paths.state.read_bytes())
    except FileNotFoundError:
        return FleetState()
    except ValidationError as error:
        raise HostError(
            f"{paths.state} cannot be read, so Roost does not know which processes of the practice fleet to end.",
            remedy="Find the fleet's sshd with ps and end it by hand, then remove the file.",
        ) from error


def _bring_up(paths: PracticePaths, name: str, before: HostState | None) -> HostState:
    if before is not None and processes.find(before.sshd) is not None:
        return before
    sshd = _sshd(paths, name)
    ref, port = sshd.start(before.ssh_port if before else None)
    # In the block of ports whose first port is the host's sshd, which keeps the block until a server is started.
    server_port = before.server_port if before else port + 1
    return HostState(name=name, ssh_port=port, server_port=server_port, sshd=ref)


def _take_down(paths: PracticePaths, host: HostState) -> list[str]:
    ended = end_running(paths.host(host.name).workdir, paths.engine_python)
    dump_dir = paths.host(host.name).dump_dir
    if (dump_dir / DUMP_MARKER).is_file():
        shutil.rmtree(dump_dir)
        ended.append(f"removed {dump_dir}")
    if processes.find(host.sshd) is not None:
        ended.append(f"ended sshd on port {host.ssh_port}")
    _sshd(paths, host.name).stop(host.sshd)
    return [f"{host.name}: {line}" for line in ended]


def _sshd(paths: PracticePaths, name: str) -> PrivateSshd:
    host = paths.host(name)
    return PrivateSshd(host.folder, host.home)


def _write_client_files(paths: PracticePaths, state: FleetState, model: Path) -> None:
    sshds = {host.name: _sshd(paths, host.name) for host in state.hosts}
    known = "".join(sshds[host.name].known_hosts_line(host.ssh_port) for host in state.hosts)
    write_whole(paths.known_hosts, known.encode())
    write_whole(paths.ssh_config, b"# Empty on purpose: the practice fleet does not depend on ~/.ssh/config.\n")
    facts = [
        HostFacts(
            name=host.name,
            ssh_port=host.ssh_port,
            server_port=host.server_port,
            client_key=sshds[host.name].client_key,
            dump_dir=paths.host(host.name).dump_dir,
        )
        for host in state.hosts
    ]
    write_inventory(paths, facts, model)
