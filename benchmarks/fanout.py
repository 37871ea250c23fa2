"""Measures an empty call on many hosts at once: Roost with both backends, and other tools with a bare start of Python.

    python -m venv OTHERS && OTHERS/bin/pip install fabric asyncssh pyinfra ansible-core
    .venv/bin/python -m benchmarks.fanout --others OTHERS --hosts 16,64 --rounds 3 --out results.json \\
        [--before CHECKOUT]

Laptop's side. The hosts are addresses from 127.0.1.1 on, sixteen of each private sshd on this machine, so its cores are
those of the laptop and of every host. Each tool is a separate process, and the tools run in turn. `roost-*` runs the
verb `hello`, which checks the payload and imports the common modules of all verbs; the other tools run `python -c
pass`. The results are wall seconds, and CPU seconds of the laptop (the process and its children) and of a host (sshd,
the shell and Python). For Roost, `peak_mib` and `descriptors` are the most memory and open descriptors of the laptop's
process (without the `ssh` processes of the OpenSSH backend).
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import getpass
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host, Inventory
from hosts.practice.sshd import PrivateSshd
from hosts.transport.openssh import openssh_version
from remote.shared.messages.hello import HelloRequest, HelloResult
from remote.shared.messages.server import ProcessRef

PR_SET_CHILD_SUBREAPER = 36
WAYS = ("roost-fabric", "roost-openssh", "fabric", "asyncssh", "pyinfra", "ansible")
QUIET_SECONDS = 60.0
ADDRESSES_OF_AN_SSHD = 16
"""An sshd listens on no more addresses (its MAX_LISTEN_SOCKS)."""


@dataclass(frozen=True)
class Box:
    """The facts about the sshd that a step gets (as JSON)."""

    port: int
    key: str
    known_hosts: str
    home: str
    hosts: int

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.1.{number + 1}" for number in range(self.hosts)]


def main() -> None:
    options = _options()
    if options.step == "host":
        folder, hosts = json.loads(options.box)
        _serve(Path(folder), hosts)
        return
    if options.step:
        STEPS[options.step](Box(**json.loads(options.box)))
        return
    _adopt_orphans()  # masters that OpenSSH puts into the background are the laptop's CPU
    counts = [int(count) for count in options.hosts.split(",")]
    with tempfile.TemporaryDirectory(prefix="fanout-") as folder:
        found = {count: _measured(Path(folder) / str(count), count, options) for count in counts}
    document = {
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": len(os.sched_getaffinity(0))},
        "load_at_the_end": os.getloadavg(),
        "versions": {"openssh": list(openssh_version()), "paramiko": importlib.metadata.version("paramiko")}
        | _versions(options.others),
        "before": _commit(options.before) if options.before else None,
        "rounds": options.rounds,
        "hosts": found,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--others", type=Path, default=Path(".others"), help="a venv with the other tools")
    parser.add_argument(
        "--before", type=Path, help="a checkout of older code, measured as before-fabric, before-openssh"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/fanout.json"))
    parser.add_argument("--step", default="", help=argparse.SUPPRESS)
    parser.add_argument("--box", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _versions(others: Path) -> dict[str, str]:
    said = subprocess.run(
        [others / "bin/python", "-m", "pip", "list", "--format", "json"], capture_output=True, text=True, check=False
    ).stdout
    wanted = ("fabric", "asyncssh", "pyinfra", "ansible-core")
    return {one["name"]: one["version"] for one in json.loads(said or "[]") if one["name"] in wanted}


def _commit(checkout: Path) -> str:
    argv = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


class HostSide:
    """The sshd in a separate process, which adopts the processes of ended sessions: all of them are CPU of hosts."""

    def __init__(self, folder: Path, hosts: int) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.fanout",
            "--step",
            "host",
            "--box",
            json.dumps([str(folder), hosts]),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.box = Box(**json.loads(self._said()))

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu(self) -> float:
        """Return the CPU seconds so far, after every session has ended."""
        assert self._process.stdin
        self._process.stdin.write("cpu\n")
        self._process.stdin.flush()
        return float(self._said())

    def close(self) -> None:
        self._process.communicate()

    def _said(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()


def _serve(folder: Path, hosts: int) -> None:
    """Start sshd, print how it is reached, and answer every line with the CPU seconds so far."""
    _adopt_orphans()
    home = folder / "home"
    port: int | None = None
    refs: list[ProcessRef] = []
    for first in range(0, hosts, ADDRESSES_OF_AN_SSHD):
        addresses = [f"127.0.1.{number + 1}" for number in range(first, min(first + ADDRESSES_OF_AN_SSHD, hosts))]
        listen = "\nListenAddress ".join(addresses)
        sshd = PrivateSshd(folder / f"etc-{first}", home, {"ListenAddress": listen, "MaxStartups": "200"})
        if refs:  # with the keys of the first sshd
            shutil.copytree(folder / "etc-0", sshd.folder)
        ref, chosen = sshd.start(port)
        if port not in (None, chosen):
            raise SystemExit(f"port {port} is in use on {addresses}: run it again")
        port = chosen
        refs.append(ref)
        known = sshd.known_hosts_line(port).partition(" ")[2]
        with (folder / "known_hosts").open("a") as known_hosts:
            known_hosts.writelines(f"[{address}]:{port} {known}" for address in addresses)
    assert port is not None
    box = Box(port, str(sshd.client_key), str(folder / "known_hosts"), str(home), hosts)
    print(json.dumps(vars(box)), flush=True)
    listeners = [psutil.Process(ref.pid) for ref in refs]
    pids = {ref.pid for ref in refs}
    for _ in sys.stdin:
        _await(lambda: not any(listener.children() for listener in listeners) and _orphans() <= pids)
        print(sum(sum(listener.cpu_times()[:4]) for listener in listeners) + _children_cpu(), flush=True)
    for ref in refs:
        sshd.stop(ref)


def _adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _orphans() -> set[int]:
    """Reap the children that have ended; return those that still run."""
    return {
        child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE or _reap(child)
    }


def _reap(child: psutil.Process) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)
    return False


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + QUIET_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("sessions or masters were still there after a minute")
        time.sleep(0.05)


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _measured(folder: Path, hosts: int, options: argparse.Namespace) -> dict[str, Any]:
    folder.mkdir()
    side = HostSide(folder, hosts)
    ways = options.ways.split(",") + ([f"before-{ssh}" for ssh in ("fabric", "openssh")] if options.before else [])
    for way in ways:  # the payload is placed, bytecode is written, caches are warm
        _run(way, side, options)
    rounds = [{way: _run(way, side, options) for way in ways} for _ in range(options.rounds)]
    side.close()
    return {
        "medians": {
            way: {part: round(statistics.median(one[way][part] for one in rounds), 3) for part in rounds[0][way]}
            for way in ways
        },
        "rounds": rounds,
    }


def _run(way: str, side: HostSide, options: argparse.Namespace) -> dict[str, float]:
    command = _command(way.replace("before-", "roost-"), side.box, options.others)
    checkout = options.before if way.startswith("before-") else Path.cwd()
    host_before, laptop_before, begun = side.cpu(), _children_cpu(), time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=checkout, env={**os.environ, **_QUIETLY}
    )
    wall = time.monotonic() - begun
    if done.returncode:
        raise SystemExit(f"{way} failed: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    _await(lambda: _orphans() <= {side.pid})  # masters that OpenSSH put into the background
    found = {
        **(json.loads(done.stdout) if way.startswith("roost-") else {}),
        "wall": round(wall, 3),
        "laptop_cpu": round(_children_cpu() - laptop_before, 3),
        "cpu_a_host": round((side.cpu() - host_before) / side.box.hosts, 4),
    }
    print(f"{side.box.hosts:3} hosts {way:14} {found}", file=sys.stderr)
    return found


def _command(way: str, box: Box, others: Path) -> list[str]:
    others = others.absolute()
    if way in ("pyinfra", "ansible"):
        return _program(way, box, others)
    if way in STEPS:
        return [sys.executable, "-m", "benchmarks.fanout", "--step", way, "--box", json.dumps(vars(box))]
    told = {**vars(box), "addresses": box.addresses, "python": sys.executable}
    return [str(others / "bin/python"), str(Path(__file__).with_name("fanout_others.py")), way, json.dumps(told)]


_QUIETLY = {
    "ANSIBLE_HOST_KEY_CHECKING": "True",
    "ANSIBLE_DEPRECATION_WARNINGS": "False",
    "ANSIBLE_NOCOLOR": "1",
    # Ansible's default but for 60 s, for which its masters would be waited for after every run.
    "ANSIBLE_SSH_ARGS": "-C -o ControlMaster=auto -o ControlPersist=2s",
}


def _program(way: str, box: Box, others: Path) -> list[str]:
    """Write a tool's inventory beside the home; return the tool's command line."""
    folder = Path(box.home).parent
    if way == "ansible":
        options = f"-oUserKnownHostsFile={box.known_hosts} -oIdentitiesOnly=yes"
        lines = [
            f"{one} ansible_port={box.port} ansible_user={getpass.getuser()} ansible_ssh_private_key_file={box.key} "
            f"ansible_ssh_common_args='{options}'\n"
            for one in box.addresses
        ]
        (folder / "hosts.ini").write_text("".join(lines))
        raw = ["-m", "raw", "-a", f"{sys.executable} -c pass", "-f", str(box.hosts)]
        return [str(others / "bin/ansible"), "all", "-i", str(folder / "hosts.ini"), *raw]
    data = {
        "ssh_port": box.port,
        "ssh_key": box.key,
        "ssh_user": getpass.getuser(),
        "ssh_known_hosts_file": box.known_hosts,
    }
    (folder / "hosts.py").write_text(f"hosts = {[(one, data) for one in box.addresses]!r}\n")
    return [str(others / "bin/pyinfra"), "-y", str(folder / "hosts.py"), "exec", "--", f"{sys.executable} -c pass"]


def _roost(box: Box, ssh: str) -> None:
    hosts = [
        Host(
            name=one,
            address=one,
            ssh_port=box.port,
            identity_file=box.key,
            known_hosts=box.known_hosts,
            ssh_config=f"{box.home}/no-config",
            python=sys.executable,
            connect_timeout=60,
            ssh=ssh,
        )
        for one in box.addresses
    ]
    fleet = Fleet(Inventory(path=Path(box.home), hosts={}, local=Host(name="local", connection="local")), hosts)
    fleet.watcher = open_files = OpenFiles()
    outcomes = fleet.call("hello", HelloRequest(), HelloResult, deadline=300)
    fleet.close()
    failed = [str(outcome.error) for outcome in outcomes if not outcome.ok]
    if failed:
        raise SystemExit(failed[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"peak_mib": round(peak / 1024), "descriptors": open_files.most}))


class OpenFiles:
    """A fleet's watcher that counts this process's descriptors whenever a call begins or ends."""

    most = 0

    def begun(self, host: Host) -> None:
        self.most = max(self.most, sum(1 for _ in Path("/proc/self/fd").iterdir()))

    def ended(self, outcome: Outcome[Any]) -> None:
        self.begun(outcome.host)


STEPS = {
    "roost-fabric": lambda box: _roost(box, "fabric"),
    "roost-openssh": lambda box: _roost(box, "openssh"),
}


if __name__ == "__main__":
    main()
