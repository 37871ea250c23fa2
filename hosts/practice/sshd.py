"""A private OpenSSH sshd on loopback: its own port, host key, client key and home. Laptop's side.

Called by the practice fleet and by tests. The sshd runs as the user who starts it, accepts only that user, and writes
only its own folder.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hosts.errors import HostError
from hosts.practice import processes
from hosts.practice.ports import ADDRESS, free_port
from remote.shared.files import make_directory, write_whole
from remote.shared.messages.server import ProcessRef

START_SECONDS = 15.0
PORT_ATTEMPTS = 5
# Debian's sshd needs this folder, which only its service creates; a private sshd does not start that service.
PRIVILEGE_SEPARATION = Path("/run/sshd")


@dataclass(frozen=True)
class PrivateSshd:
    """Files and settings of one sshd. `start` returns a `ProcessRef`, by which `processes.find` tells if it runs."""

    folder: Path
    home: Path
    """HOME of every session, created by `start`. Its name may have any characters."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further lines of sshd_config, as in `{"MaxStartups": "10"}`; they win over this module's own."""

    @property
    def client_key(self) -> Path:
        """The client's private key, the only authorized key."""
        return self.folder / "client_key"

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    @property
    def log(self) -> Path:
        return self.folder / "sshd.log"

    def known_hosts_line(self, port: int) -> str:
        """Return the known_hosts entry of this sshd on `port`."""
        kind, key = self.host_key.with_suffix(".pub").read_text().split()[:2]
        return f"[{ADDRESS}]:{port} {kind} {key}\n"

    def start(self, port: int | None = None) -> tuple[ProcessRef, int]:
        """Start sshd on `port`, or on a free port if `port` is None or in use; return when it listens.

        Raises HostError, with sshd's last output, if sshd is missing or ends at once.
        """
        program = find_sshd()
        self._prepare()
        for attempt in range(PORT_ATTEMPTS):
            chosen = port if port is not None and attempt == 0 else free_port()
            process = self._launch(program, chosen)
            if _listens(process, chosen):
                return processes.reference(psutil.Process(process.pid)), chosen
            process.kill()
            process.wait()
        raise HostError(f"sshd did not start on {ADDRESS}: {self._last_words()}.", remedy=f"See {self.log}.")

    def stop(self, ref: ProcessRef) -> None:
        """End this sshd and its sessions. Detached processes of a session keep running."""
        listener = processes.find(ref)
        if listener is None:
            return
        # Each session is an sshd process of its own, which would outlive the listener until its client disconnects.
        sessions = [child for child in listener.children(recursive=True) if _is_sshd(child)]
        processes.end([listener, *sessions])

    def _prepare(self) -> None:
        make_directory(self.folder)
        make_directory(self.home)
        if os.geteuid() == 0:
            PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        for key in (self.host_key, self.client_key):
            if not key.exists():
                _make_key(key)
        write_whole(self.folder / "authorized_keys", self.client_key.with_suffix(".pub").read_bytes())

    def _launch(self, program: str, port: int) -> subprocess.Popen[bytes]:
        config = self.folder / "sshd_config"
        write_whole(config, self._config(port).encode())
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [program, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _config(self, port: int) -> str:
        """Return the configuration. The first value of a keyword counts, so `settings` come before the defaults."""
        defaults = {
            "ListenAddress": ADDRESS,
            "Port": str(port),
            "HostKey": _quoted(self.host_key),
            "AuthorizedKeysFile": _quoted(str(self.folder / "authorized_keys").replace("%", "%%")),
            "SetEnv": _quoted(f"HOME={self.home}"),
            "AllowUsers": getpass.getuser(),
            "AuthenticationMethods": "publickey",
            "PermitRootLogin": "prohibit-password",
            # With PAM only if the account is locked: without PAM, sshd refuses locked accounts.
            "UsePAM": "yes" if _account_is_locked() else "no",
            # A clone may be in a folder that others can write to. The keys in it are 0600.
            "StrictModes": "no",
            "PidFile": "none",
            "UseDNS": "no",
            "PrintMotd": "no",
            "LogLevel": "VERBOSE",
            "Subsystem": "sftp internal-sftp",
        }
        lines = {**self.settings, **{key: value for key, value in defaults.items() if key not in self.settings}}
        return "".join(f"{key} {value}\n" for key, value in lines.items())

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1].rstrip(".") if lines else "it said nothing"


def find_sshd() -> str:
    """Return sshd's absolute path, without which sshd cannot run itself again. Raises HostError if sshd is missing."""
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")
    if program is None:
        raise HostError("There is no OpenSSH server (sshd) on this machine.", remedy="Run make system.")
    return program


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until this process listens on `port`. Return False if it ends first, as when the port is in use."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            sockets = psutil.Process(process.pid).net_connections(kind="tcp")
        except psutil.Error:
            continue
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in sockets):
            return True
        time.sleep(0.01)
    return False


def _is_sshd(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("sshd")
    except psutil.NoSuchProcess:
        return False


def _make_key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"roost {path.name}", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _account_is_locked() -> bool:
    """Return whether the user's password field starts with `!`. Only root can read the field, and needs to."""
    try:
        entries = Path("/etc/shadow").read_text().splitlines()
    except OSError:
        return False
    return any(
        entry.split(":", 2)[:2][1].startswith("!") for entry in entries if entry.startswith(f"{getpass.getuser()}:")
    )


def _quoted(value: Path | str) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
