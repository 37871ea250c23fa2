"""A host that can be broken: its power, its link, its disk, its RAM disk, its processes.

Called by the fault suite. In namespaces a box has network, processes and mounts of its own; its disk is a small file
system that survives a reboot. Without namespaces it is a folder and an sshd on loopback, and has no link to cut.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hosts.practice import namespaces
from hosts.practice.sshd import PrivateSshd
from remote.shared.files import write_whole
from tests.faults.power import RAMDISK, SSH_PORT, Power

DISK_BYTES = 48 << 20
DISK_INODES = 20_000
RAMDISK_BYTES = 8 << 20
BALLAST = "ballast"
CLOCK = """
import time
_true = time.time
def _time():
    with open({path!r}) as file:
        return _true() + float(file.read())
time.time = _time
"""
CAUSES_BYTES = 16 << 10
TRIES = 20
MOUNTS = ("mount", "pid")
DISK_OPTIONS = f"size={DISK_BYTES},nr_inodes={DISK_INODES}"
CLONE = Path(__file__).parents[2]
_CABLES = itertools.count()


@dataclass
class Box:
    """One host; off until `power_on`."""

    name: str
    number: int
    root: Path
    """A folder of the suite's own for this box."""
    isolated: bool
    starts: int = 0
    server: dict[str, Any] = field(default_factory=dict)
    """How its stand-in behaves, beside where it is."""

    def __post_init__(self) -> None:
        self._init: subprocess.Popen[str] | None = None
        self._cable = ""
        self._ports: dict[str, int] = {}
        self.disk.mkdir(parents=True)
        if self.isolated:
            namespaces.run("mount", "-t", "tmpfs", "-o", DISK_OPTIONS, "tmpfs", str(self.disk))

    @property
    def disk(self) -> Path:
        return self.root / "disk"

    @property
    def home(self) -> Path:
        return self.disk / 'it\'s a "home"'

    @property
    def workdir(self) -> Path:
        return self.home / "roost"

    @property
    def ramdisk(self) -> Path:
        """The RAM disk as the suite sees it; gone while the power is off."""
        return Path(f"/proc/{self._leader.pid}/root{RAMDISK}") if self.isolated else self.root / "ramdisk"

    @property
    def dump_dir(self) -> str:
        """As the box itself calls it."""
        return f"{RAMDISK}/sglang_hs" if self.isolated else str(self.ramdisk / "sglang_hs")

    @property
    def sshd(self) -> PrivateSshd:
        return PrivateSshd(self.root / "etc", self.home)

    @property
    def address(self) -> str:
        return f"10.213.{self.number}.2" if self.isolated else "127.0.0.1"

    @property
    def ssh_port(self) -> int:
        return self._ports["ssh_port"]

    @property
    def server_port(self) -> int:
        return self._ports["server_port"]

    @property
    def is_on(self) -> bool:
        return self._init is not None

    def known_hosts_line(self) -> str:
        """The entry by which a client recognises it."""
        kind, key = self.sshd.host_key.with_suffix(".pub").read_text().split()[:2]
        where = self.address if self.ssh_port == SSH_PORT else f"[{self.address}]:{self.ssh_port}"
        return f"{where} {kind} {key}\n"

    def power_on(self) -> None:
        """Boot: sshd listens, the link is up, no server runs."""
        self.home.mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "tests.faults.power"]
        if self.isolated:
            argv = [*namespaces.UNSHARE, *argv]
        else:
            self.ramdisk.mkdir(exist_ok=True)
        with (self.root / "power.log").open("a") as log:
            self._init = subprocess.Popen(
                argv,
                cwd=CLONE,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        power = Power(str(self.root / "etc"), str(self.home), self.isolated, RAMDISK_BYTES, self._ports.get("ssh_port"))
        self._ports = self._ask(asdict(power))
        if self.isolated:
            self._cable = f"roost{next(_CABLES)}"
            near = f"10.213.{self.number}.1/30"
            namespaces.link(self._leader.pid, self._cable, near, f"{self.address}/30")

    def power_off(self) -> None:
        """Pull the plug: every process is gone at once, the RAM disk too; the disk stays."""
        if self._init is None:
            return
        if self.isolated:
            namespaces.run("ip", "link", "delete", self._cable)
            self._leader.kill()
        else:
            for process in self.processes():
                process.kill()
            self._leader.kill()
            shutil.rmtree(self.ramdisk, ignore_errors=True)
        self._init.wait()
        self._init = None

    def lose_disk(self) -> None:
        """A new, empty disk takes the place of the old one; only while the power is off."""
        if self.isolated:
            namespaces.run("umount", str(self.disk))
            namespaces.run("mount", "-t", "tmpfs", "-o", DISK_OPTIONS, "tmpfs", str(self.disk))
        else:
            shutil.rmtree(self.disk)
            self.disk.mkdir()

    def discard(self) -> None:
        """Power off for good, and give the disk back."""
        self.power_off()
        if self.isolated:
            namespaces.run("umount", str(self.disk))

    def fill_disk(self, *, inodes: bool = False) -> None:
        """Leave no byte, or no inode, of the disk free."""

        def fill() -> None:
            found = os.statvfs(self.disk)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            limit = f"nr_inodes={found.f_files - found.f_ffree}" if inodes else f"size={used}"
            namespaces.run("mount", "-o", f"remount,{limit}", str(self.disk))

        _until_it_fits(fill)

    def empty_disk(self) -> None:
        """The disk has room again."""
        namespaces.run("mount", "-o", f"remount,{DISK_OPTIONS}", str(self.disk))

    def fill_ramdisk(self) -> None:
        """Leave the RAM disk no room for a record, and just enough to say so."""
        with (self.ramdisk / BALLAST).open("ab") as ballast:

            def fill() -> None:
                found = os.statvfs(self.ramdisk)
                os.posix_fallocate(ballast.fileno(), 0, found.f_bavail * found.f_frsize - CAUSES_BYTES)

            _until_it_fits(fill)

    def empty_ramdisk(self) -> None:
        """The RAM disk has room again."""
        (self.ramdisk / BALLAST).unlink(missing_ok=True)

    def fill_ramdisk_to_the_last_byte(self) -> None:
        """Leave the RAM disk no room at all, not even to say so."""
        with (self.ramdisk / BALLAST).open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                return

    def make_read_only(self) -> None:
        """Nothing in the working directory can be written any more; files that are open stay so."""
        self._mount("--bind", str(self.workdir), str(self.workdir))
        self._mount("-o", "remount,bind,ro", str(self.workdir))

    def make_writable(self) -> None:
        namespaces.within(self._leader.pid, MOUNTS, "umount", "--lazy", str(self.workdir))

    def set_clock(self, seconds: float) -> None:
        """Step the box's clock, so much from the true time: `time.time()` and the boot time that the kernel reports."""
        true = (self.root / "stat").read_text() if (self.root / "stat").exists() else Path("/proc/stat").read_text()
        (self.root / "stat").write_text(true)
        stepped = [
            f"btime {int(line.split()[1]) + int(seconds)}" if line.startswith("btime") else line
            for line in true.splitlines()
        ]
        (self.root / "stepped").write_text("\n".join(stepped) + "\n")
        self._mount("--bind", str(self.root / "stepped"), "/proc/stat")
        write_whole(self.clock, str(seconds).encode())  # read all the time: never half of it

    @property
    def clock(self) -> Path:
        """By how many seconds the box's clock is wrong; read by what `python` puts before every program."""
        return self.root / "lib" / "seconds"

    @property
    def python(self) -> Path:
        """What the inventory calls the host's Python."""
        return self.root / "python"

    def set_python(self, python: Path | None, before: str = "") -> None:
        """Have the host's Python be this one, with a program text run before everything, or none at all."""
        self.python.unlink(missing_ok=True)
        if python is None:
            return
        library = self.root / "lib"
        library.mkdir(exist_ok=True)
        write_whole(self.clock, b"0")
        (library / "sitecustomize.py").write_text(CLOCK.format(path=str(self.clock)) + before)
        words = f"PYTHONPATH={shlex.quote(str(library))} exec {shlex.quote(str(python))}"
        self.python.write_text(f'#!/bin/sh\n{words} "$@"\n')
        self.python.chmod(0o755)

    def _mount(self, *argv: str) -> None:
        namespaces.within(self._leader.pid, MOUNTS, "mount", *argv)

    def change_host_key(self) -> None:
        """Be reinstalled, as far as SSH can see: sshd comes back with another key."""
        for path in (self.sshd.host_key, self.sshd.host_key.with_suffix(".pub")):
            path.unlink()
        self.power_off()
        self.power_on()
        self.serve()

    def forget_connections(self) -> None:
        """Drop every established connection of the box's own ends, and end their sessions; says so to nobody."""
        namespaces.inside(self._leader.pid, "ss", "--kill", "--tcp", "state", "established")

    def set_link(self, up: bool) -> None:
        """Cut the link at the host's own end, or mend it: bytes are dropped in silence, nobody is told."""
        namespaces.inside(self._leader.pid, "ip", "link", "set", "eth0", "up" if up else "down")

    def serve(self) -> None:
        """Start the stand-in as the next life of the server `main`; returns once it is ready."""
        self.starts += 1
        where = {"workdir": str(self.workdir), "dump_dir": self.dump_dir, "port": self.server_port}
        self._ask({"serve": {**where, "start": self.starts, **self.server}})

    def tell_server(self, faults: dict[str, list[str]]) -> None:
        """Have the stand-in do this to these records' requests from now on."""
        self._ask({"post": [f"http://127.0.0.1:{self.server_port}/faults", faults]})

    def restart_sshd(self, settings: dict[str, str]) -> None:
        """sshd starts anew, with further settings; sessions end."""
        self._ask({"sshd": settings})

    def mute_sshd(self) -> None:
        """Somebody listens in sshd's place, who never answers; sessions end."""
        self._ask({"sshd": None})

    def processes(self, is_meant: Callable[[list[str]], bool] = lambda _: True) -> list[psutil.Process]:
        """Living processes of the box whose command line is meant; without process 1 itself."""
        found = []
        for process in self._everything() if self._init else []:
            try:
                if process.status() != psutil.STATUS_ZOMBIE and is_meant(process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def _everything(self) -> list[psutil.Process]:
        """On loopback what is detached is no child of ours; there the box's HOME tells it from the machine's own."""
        children = self._leader.children(recursive=True)
        if self.isolated:
            return children
        return [*children, *(process for process in psutil.process_iter() if _has_home(process, self.home))]

    def signal(self, number: signal.Signals, is_meant: Callable[[list[str]], bool]) -> int:
        """Signal every process that is meant; returns how many there were."""
        meant = self.processes(is_meant)
        for process in meant:
            process.send_signal(number)
        return len(meant)

    @property
    def _leader(self) -> psutil.Process:
        """Process 1 of the box, seen from here: unshare's child, or the program itself."""
        assert self._init is not None, f"{self.name} has no power"
        own = psutil.Process(self._init.pid)
        return own.children()[0] if self.isolated else own

    def _ask(self, message: dict[str, Any]) -> dict[str, int]:
        assert self._init is not None
        assert self._init.stdin is not None
        assert self._init.stdout is not None
        self._init.stdin.write(json.dumps(message) + "\n")
        self._init.stdin.flush()
        answer = self._init.stdout.readline()
        assert answer, f"{self.name} ended with {self._init.wait()}"
        return dict(json.loads(answer))


def _has_home(process: psutil.Process, home: Path) -> bool:
    try:
        return process.environ().get("HOME") == str(home)
    except psutil.Error:
        return False


def is_extractor(argv: list[str]) -> bool:
    """Whether a command line is the detached extractor's."""
    return argv[1:4] == ["-m", "remote", "extract"]


def is_recorder(argv: list[str]) -> bool:
    """Whether a command line is that of the recorder of histories, which goes on until the host has idled for long."""
    return argv[1:4] == ["-m", "remote", "recorder"]


def is_server(argv: list[str]) -> bool:
    return len(argv) > 1 and argv[1].endswith("standin.py")


def is_sshd(argv: list[str]) -> bool:
    return bool(argv) and "sshd" in argv[0]


def _until_it_fits(fill: Callable[[], None]) -> None:
    """Fill a disk that is in use: where somebody takes of it between the look and the filling, look again."""
    for _ in range(TRIES):
        with suppress(OSError, subprocess.CalledProcessError):
            fill()
            return
    fill()
