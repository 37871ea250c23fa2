"""A Kerberos realm of one's own on loopback: a KDC, a service key for sshd, and a ticket for this user."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

from hosts.practice.ports import free_port

REALM = "ROOST.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def missing() -> str:
    """The first program that Debian's krb5-kdc, krb5-admin-server and krb5-user would bring; "" if all are there."""
    return next((name for name in PROGRAMS if shutil.which(name, path=_PATH) is None), "")


class Realm:
    """Its files lie in `folder`; `environment` is what clients and services need."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.port = free_port()
        self.keytab = folder / "keytab"
        self.environment = {
            "KRB5_CONFIG": str(folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5_KTNAME": str(self.keytab),
            "KRB5CCNAME": f"FILE:{folder / 'tickets'}",
        }
        (folder / "krb5.conf").write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f" dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n kdc = 127.0.0.1:{self.port}\n }}\n"
            f"[domain_realm]\n 127.0.0.1 = {REALM}\n localhost = {REALM}\n"
        )
        (folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n database_name = {folder}/db\n key_stash_file = {folder}/stash\n"
            f" acl_file = {folder}/acl\n }}\n[logging]\n kdc = FILE:{folder}/kdc.log\n"
        )
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of this test")
        self._user = getpass.getuser()
        for principal in ("host/127.0.0.1", "host/localhost", self._user):
            self._run("kadmin.local", "-q", f"addprinc -randkey {principal}@{REALM}")
            self._run("kadmin.local", "-q", f"ktadd -k {self.keytab} {principal}@{REALM}")
        self._kdc = subprocess.Popen(
            [str(shutil.which("krb5kdc", path=_PATH)), "-n", "-r", REALM, "-P", str(folder / "pid")],
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._await()

    def log_in(self) -> None:
        """Get this user's ticket."""
        self._run("kinit", "-k", "-t", str(self.keytab), f"{self._user}@{REALM}")

    def close(self) -> None:
        self._kdc.terminate()
        self._kdc.wait()

    def _await(self) -> None:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._kdc.poll() is None, "the KDC ended"
            threading.Event().wait(0.1)
        raise AssertionError("the KDC does not listen")

    def _run(self, name: str, *arguments: str) -> None:
        program = str(shutil.which(name, path=_PATH))
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stderr
