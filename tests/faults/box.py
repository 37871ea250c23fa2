"""A box: a host whose power, link, disk, RAM disk and processes can be broken.

Called by the fault suite. In namespaces a box has its own network, processes and mounts, and its disk is a small file
system that survives a reboot. Without namespaces a box is a folder and an sshd on loopback, and has no link to cut.
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
    """One host, which is off until `power_on`."""

    name: str
    number: int
    root: Path
    """The suite's folder for this box."""
    isolated: bool
    starts: int = 0
    server: dict[str, Any] = field(default_factory=dict)
    """The settings of its stand-in, besides paths and port."""

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
        """The path at which the suite sees the RAM disk, which does not exist while the power is off."""
        return Path(f"/proc/{self._leader.pid}/root{RAMDISK}") if self.isolated else self.root / "ramdisk"

    @property
    def dump_dir(self) -> str:
        """The dump directory's path on the box itself."""
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
        """Return the known_hosts entry of this box."""
        kind, key = self.sshd.host_key.with_suffix(".pub").read_text().split()[:2]
        where = self.address if self.ssh_port == SSH_PORT else f"[{self.address}]:{self.ssh_port}"
        return f"{where} {kind} {key}\n"

    def power_on(self) -> None:
        """Boot the box. Then sshd listens, the link is up, and no server runs."""
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
        """Pull the plug: all processes and the RAM disk are gone at once, and the disk stays."""
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
        """Replace the disk by a new, empty one; only while the power is off."""
        if self.isolated:
            namespaces.run("umount", str(self.disk))
            namespaces.run("mount", "-t", "tmpfs", "-o", DISK_OPTIONS, "tmpfs", str(self.disk))
        else:
            shutil.rmtree(self.disk)
            self.disk.mkdir()

    def discard(self) -> None:
        """Power off for good, and release the disk."""
        self.power_off()
        if self.isolated:
            namespaces.run("umount", str(self.disk))

    def fill_disk(self, *, inodes: bool = False) -> None:
        """Fill the disk to the last byte, or to the last inode."""

        def fill() -> None:
            found = os.statvfs(self.disk)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            limit = f"nr_inodes={found.f_files - found.f_ffree}" if inodes else f"size={used}"
            namespaces.run("mount", "-o", f"remount,{limit}", str(self.disk))

        _until_it_fits(fill)

    def empty_disk(self) -> None:
        """Give the disk room again."""
        namespaces.run("mount", "-o", f"remount,{DISK_OPTIONS}", str(self.disk))

    def fill_ramdisk(self) -> None:
        """Fill the RAM disk so far that no record fits, but the server can still write the cause."""
        with (self.ramdisk / BALLAST).open("ab") as ballast:

            def fill() -> None:
                found = os.statvfs(self.ramdisk)
                os.posix_fallocate(ballast.fileno(), 0, found.f_bavail * found.f_frsize - CAUSES_BYTES)

            _until_it_fits(fill)

    def empty_ramdisk(self) -> None:
        """Give the RAM disk room again."""
        (self.ramdisk / BALLAST).unlink(missing_ok=True)

    def fill_ramdisk_to_the_last_byte(self) -> None:
        """Fill the RAM disk so far that not even the cause can be written."""
        with (self.ramdisk / BALLAST).open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                return

    def make_read_only(self) -> None:
        """Make the working directory read-only. Open files stay open."""
        self._mount("--bind", str(self.workdir), str(self.workdir))
        self._mount("-o", "remount,bind,ro", str(self.workdir))

    def make_writable(self) -> None:
        namespaces.within(self._leader.pid, MOUNTS, "umount", "--lazy", str(self.workdir))

    def set_clock(self, seconds: float) -> None:
        """Set the box's clock this far from the true time: `time.time()` and the boot time that the kernel reports."""
        true = (self.root / "stat").read_text() if (self.root / "stat").exists() else Path("/proc/stat").read_text()
        (self.root / "stat").write_text(true)
        stepped = [
            f"btime {int(line.split()[1]) + int(seconds)}" if line.startswith("btime") else line
            for line in true.splitlines()
        ]
        (self.root / "stepped").write_text("\n".join(stepped) + "\n")
        self._mount("--bind", str(self.root / "stepped"), "/proc/stat")
        write_whole(self.clock, str(seconds).encode())  # as a whole, because processes read it all the time

    @property
    def clock(self) -> Path:
        """The file with the seconds by which the box's clock is wrong. The text that `python` runs first reads it."""
        return self.root / "lib" / "seconds"

    @property
    def python(self) -> Path:
        """The path of the host's Python in the inventory."""
        return self.root / "python"

    def set_python(self, python: Path | None, before: str = "") -> None:
        """Set the host's Python to this one, which first runs a program text, or remove the host's Python."""
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
        """Give sshd another host key, as after the host was installed again."""
        for path in (self.sshd.host_key, self.sshd.host_key.with_suffix(".pub")):
            path.unlink()
        self.power_off()
        self.power_on()
        self.serve()

    def forget_connections(self) -> None:
        """Drop the box's ends of all connections and end their sessions, without telling the other ends."""
        namespaces.inside(self._leader.pid, "ss", "--kill", "--tcp", "state", "established")

    def set_link(self, up: bool) -> None:
        """Cut or repair the link at the host's end. While it is cut, bytes are dropped silently."""
        namespaces.inside(self._leader.pid, "ip", "link", "set", "eth0", "up" if up else "down")

    def serve(self) -> None:
        """Start the stand-in as the server `main`, and return when it is ready."""
        self.starts += 1
        where = {"workdir": str(self.workdir), "dump_dir": self.dump_dir, "port": self.server_port}
        self._ask({"serve": {**where, "start": self.starts, **self.server}})

    def tell_server(self, faults: dict[str, list[str]]) -> None:
        """Tell the stand-in which faults the requests of which records meet from now on."""
        self._ask({"post": [f"http://127.0.0.1:{self.server_port}/faults", faults]})

    def restart_sshd(self, settings: dict[str, str]) -> None:
        """Start sshd again with further settings. Sessions end."""
        self._ask({"sshd": settings})

    def mute_sshd(self) -> None:
        """Replace sshd by a listener that never answers. Sessions end."""
        self._ask({"sshd": None})

    def processes(self, is_meant: Callable[[list[str]], bool] = lambda _: True) -> list[psutil.Process]:
        """Return the box's living processes whose command line matches, without process 1."""
        found = []
        for process in self._everything() if self._init else []:
            try:
                if process.status() != psutil.STATUS_ZOMBIE and is_meant(process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def _everything(self) -> list[psutil.Process]:
        """Return all processes of the box. On loopback, the box's HOME identifies its detached processes."""
        children = self._leader.children(recursive=True)
        if self.isolated:
            return children
        return [*children, *(process for process in psutil.process_iter() if _has_home(process, self.home))]

    def signal(self, number: signal.Signals, is_meant: Callable[[list[str]], bool]) -> int:
        """Signal every matching process; return their number."""
        meant = self.processes(is_meant)
        for process in meant:
            process.send_signal(number)
        return len(meant)

    @property
    def _leader(self) -> psutil.Process:
        """Process 1 of the box as the suite sees it: the child of unshare, or the program itself."""
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
    """Return whether a command line is that of the detached extractor."""
    return argv[1:4] == ["-m", "remote", "extract"]


def is_recorder(argv: list[str]) -> bool:
    """Return whether a command line is that of the recorder, which runs on until the host was idle for long."""
    return argv[1:4] == ["-m", "remote", "recorder"]


def is_server(argv: list[str]) -> bool:
    return len(argv) > 1 and argv[1].endswith("standin.py")


def is_sshd(argv: list[str]) -> bool:
    return bool(argv) and "sshd" in argv[0]


def _until_it_fits(fill: Callable[[], None]) -> None:
    """Fill a disk that is in use. If a process takes some of its room in between, try again."""
    for _ in range(TRIES):
        with suppress(OSError, subprocess.CalledProcessError):
            fill()
            return
    fill()
