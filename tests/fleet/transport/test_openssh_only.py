"""Logins that only OpenSSH can do, against a real sshd: `auto` chooses OpenSSH, and a verb runs."""

from __future__ import annotations

import base64
import getpass
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hosts.errors import AuthenticationError
from hosts.inventory.model import Host
from hosts.practice.sshd import PrivateSshd
from hosts.transport import ssh
from hosts.transport.settings import resolve
from tests.fleet.transport import kerberos
from tests.fleet.transport.kerberos import Realm
from tests.fleet.transport.security_key import KIND, SecurityKeyAgent
from tests.fleet.transport.test_keys import hello, host_of, new_key

pytestmark = pytest.mark.ssh


@contextmanager
def serving(tmp_path: Path, **settings: str) -> Iterator[tuple[PrivateSshd, int]]:
    server = PrivateSshd(tmp_path / "etc", tmp_path / "home", settings)
    ref, port = server.start()
    try:
        yield server, port
    finally:
        server.stop(ref)


def reason(host: Host) -> str:
    """Why OpenSSH carries the host."""
    choice = ssh.choose(resolve(host))
    assert choice.openssh
    return choice.why


def test_a_user_certificate_logs_in_and_another_authority_s_does_not(tmp_path: Path) -> None:
    authority, stranger, mine = (new_key(tmp_path / name) for name in ("authority", "stranger", "mine"))

    def signed_by(key: Path) -> None:
        sign = ["ssh-keygen", "-q", "-s", str(key), "-I", "me", "-n", getpass.getuser(), f"{mine}.pub"]
        subprocess.run(sign, check=True, stdin=subprocess.DEVNULL)

    trusted = str(authority.with_suffix(".pub"))
    with serving(tmp_path, TrustedUserCAKeys=trusted, AuthorizedKeysFile="none") as (server, port):
        host = host_of(tmp_path, server, port, identity_file=str(mine))
        signed_by(authority)
        assert "has a certificate" in reason(host)
        assert hello(host).version
        signed_by(stranger)
        with pytest.raises(AuthenticationError):
            hello(host)


def test_a_security_key_in_the_agent_logs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = SecurityKeyAgent(tmp_path / "agent")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    keys = tmp_path / "keys"
    keys.write_text(f"{KIND.decode()} {base64.b64encode(agent.blob).decode()}\n")
    with serving(tmp_path, AuthorizedKeysFile=str(keys)) as (server, port):
        host = host_of(tmp_path, server, port, "Host *\n IdentityFile /no/key\n")
        assert "the agent holds a key of the type sk-ssh-ed25519@openssh.com" in reason(host)
        assert hello(host).version
    assert agent.signatures > 0
    agent.close()


@pytest.fixture
def realm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Realm]:
    if program := kerberos.missing():
        pytest.skip(f"there is no {program}; type: sudo apt-get install krb5-kdc krb5-admin-server krb5-user")
    made = Realm(tmp_path / "realm")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    ssh.has_ticket.cache_clear()
    yield made
    made.close()
    ssh.has_ticket.cache_clear()


def test_a_login_with_a_kerberos_ticket_succeeds_and_without_it_fails(tmp_path: Path, realm: Realm) -> None:
    settings = {"GSSAPIAuthentication": "yes", "GSSAPIStrictAcceptorCheck": "no"}
    with serving(tmp_path, AuthenticationMethods="gssapi-with-mic", **settings) as (server, port):
        config = "Host *\n GSSAPIAuthentication yes\n PubkeyAuthentication no\n"
        host = host_of(tmp_path, server, port, config, ssh="openssh")
        with pytest.raises(AuthenticationError):
            hello(host)
        realm.log_in()
        ssh.has_ticket.cache_clear()
        host = host_of(tmp_path, server, port, config.replace(" PubkeyAuthentication no\n", ""))
        assert "there is a Kerberos ticket" in reason(host)
        assert hello(host).version
