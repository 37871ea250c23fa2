"""Keys and certificates against a real sshd: agents, host certificates, a man in the middle, a server that floods."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from hosts.errors import AuthenticationError, HostKeyError, RoostError
from hosts.inventory.model import Host
from hosts.practice.sshd import PrivateSshd
from hosts.transport import over_fabric
from hosts.transport.process import Process
from hosts.transport.settings import resolve
from hosts.transport.ssh import SshBackend, choose
from hosts.transport.trust import look
from remote.shared.messages.hello import HelloRequest, HelloResult

pytestmark = pytest.mark.ssh
BACKENDS = ["fabric", "openssh"]


def new_key(path: Path, *options: str, kind: str = "ed25519") -> Path:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path), *options]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[tuple[PrivateSshd, int]]:
    server = PrivateSshd(tmp_path / "etc", tmp_path / "home", {"MaxAuthTries": "3"})
    ref, port = server.start()
    yield server, port
    server.stop(ref)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent that holds six strange keys; its socket's path."""
    address = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(address)], stdout=subprocess.DEVNULL)
    while not address.exists() and process.poll() is None:
        threading.Event().wait(0.01)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
    for number in range(6):
        add(new_key(tmp_path / f"strange{number}"))
    yield address
    process.terminate()
    process.wait()


def add(key: Path) -> None:
    subprocess.run(["ssh-add", "-q", str(key)], check=True, stdin=subprocess.DEVNULL)


def host_of(tmp_path: Path, server: PrivateSshd, port: int, config: str = "", **settings: object) -> Host:
    (tmp_path / "config").write_text(config)
    known_hosts = tmp_path / "known_hosts"
    if not known_hosts.exists():
        known_hosts.write_text(server.known_hosts_line(port))
    host = Host(
        name="box",
        address=f"127.0.0.1:{port}",
        ssh_config=str(tmp_path / "config"),
        known_hosts=str(known_hosts),
        python=sys.executable,
        connect_timeout=10,
    )
    return host.model_copy(update=settings)


def hello(host: Host) -> HelloResult:
    backend = SshBackend(host)
    try:
        return backend.call("hello", HelloRequest(), HelloResult, deadline=60)
    finally:
        backend.close()


@pytest.mark.parametrize("ssh", BACKENDS)
@pytest.mark.parametrize("named", ["key", "key.pub"])
def test_the_configured_key_is_offered_before_six_others_of_the_agent(
    tmp_path: Path, sshd: tuple[PrivateSshd, int], agent: Path, ssh: str, named: str
) -> None:
    server, port = sshd
    add(server.client_key)
    public = tmp_path / "key.pub"
    public.write_bytes(server.client_key.with_suffix(".pub").read_bytes())
    if named == "key":  # with a passphrase, so that only the agent can sign
        (tmp_path / "key").write_bytes(server.client_key.read_bytes())
        (tmp_path / "key").chmod(0o600)
        command = ["ssh-keygen", "-q", "-p", "-N", "secret", "-P", "", "-f", str(tmp_path / "key")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert hello(host_of(tmp_path, server, port, f"Host *\n IdentityFile {tmp_path / named}\n", ssh=ssh)).version


@pytest.mark.parametrize("ssh", BACKENDS)
def test_too_many_keys_are_a_refused_login_and_no_broken_connection(
    tmp_path: Path, sshd: tuple[PrivateSshd, int], agent: Path, ssh: str
) -> None:
    server, port = sshd
    add(server.client_key)  # behind the six, and the server takes three tries
    with pytest.raises(AuthenticationError, match="refused the login"):
        hello(host_of(tmp_path, server, port, "Host *\n IdentityFile /no/key\n", ssh=ssh))


def test_a_key_with_a_passphrase_and_no_agent_says_what_to_type(
    tmp_path: Path, sshd: tuple[PrivateSshd, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    server, port = sshd
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)], check=True)
    with pytest.raises(AuthenticationError, match=r"has a passphrase, and no agent holds its key. Run ssh-add"):
        hello(host_of(tmp_path, server, port, identity_file=str(key)))


def test_a_host_certificate_is_accepted_only_from_its_authority(tmp_path: Path) -> None:
    authority = new_key(tmp_path / "authority")
    server = PrivateSshd(
        tmp_path / "etc", tmp_path / "home", {"HostCertificate": str(tmp_path / "etc" / "host_key-cert.pub")}
    )
    (tmp_path / "etc").mkdir(mode=0o700)
    new_key(server.host_key)
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "box", "-h", "-n", "127.0.0.1", f"{server.host_key}.pub"]
    subprocess.run(sign, check=True, stdin=subprocess.DEVNULL)
    ref, port = server.start()
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"@cert-authority [127.0.0.1]:* {authority.with_suffix('.pub').read_text()}")
    host = host_of(tmp_path, server, port, identity_file=str(server.client_key))
    try:
        assert choose(resolve(host)).openssh
        assert hello(host).version
        [key] = look(host, lambda key: False).keys
        assert (key.known, key.authority) == (True, f"{known_hosts} line 1")
        other = new_key(tmp_path / "other")
        known_hosts.write_text(f"@cert-authority [127.0.0.1]:* {other.with_suffix('.pub').read_text()}")
        with pytest.raises(HostKeyError, match="is not known"):
            hello(host)
        assert not look(host, lambda key: False).keys[0].known
    finally:
        server.stop(ref)


class Flood(paramiko.ServerInterface):
    """Lets everybody in and sends without end, whatever the client's window says."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=flood, args=(channel,), daemon=True).start()
        return True


def flood(channel: paramiko.Channel) -> None:
    try:
        while True:
            channel.out_window_size = 1 << 30
            channel.sendall(b"x" * 30_000)
    except (OSError, EOFError):
        return


@pytest.fixture(params=["rsa", "ecdsa"])
def stranger(request: pytest.FixtureRequest) -> Iterator[tuple[int, paramiko.PKey]]:
    """A server with a key of its own that is no sshd: its port and key."""
    key = paramiko.RSAKey.generate(2048) if request.param == "rsa" else paramiko.ECDSAKey.generate()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                transport = paramiko.Transport(client)
                transport.add_server_key(key)
                with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # the client left
                    transport.start_server(server=Flood())

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1], key


@pytest.mark.parametrize("ssh", BACKENDS)
def test_a_key_of_another_type_than_the_known_one_is_changed_and_not_new(
    tmp_path: Path, stranger: tuple[int, paramiko.PKey], ssh: str
) -> None:
    port, _ = stranger
    kind, blob = new_key(tmp_path / "known").with_suffix(".pub").read_text().split()[:2]
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {blob}\n")
    host = host_of(tmp_path, PrivateSshd(tmp_path, tmp_path), port, ssh=ssh)
    for attempt in (lambda: hello(host), lambda: look(host, lambda key: True)):
        with pytest.raises(HostKeyError, match="has CHANGED"):
            attempt()
    assert len((tmp_path / "known_hosts").read_text().splitlines()) == 1


def read_all(process: Process) -> None:
    while process.read(1 << 20, 10):
        continue


def read_flood(backend: SshBackend) -> None:
    process = backend.open(["true"])
    assert isinstance(process, over_fabric.SshProcess)
    try:
        deadline = threading.Event()
        while not process._out.overflowed and not deadline.wait(0.05):
            assert len(process._out) <= 8 << 20
        read_all(process)
    finally:
        process.close()


def test_a_server_that_ignores_the_window_is_cut_off_with_a_sentence(
    tmp_path: Path, stranger: tuple[int, paramiko.PKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, key = stranger
    monkeypatch.setattr(over_fabric, "MOST_UNREAD_BYTES", 8 << 20)
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")
    mine = new_key(tmp_path / "mine")
    backend = SshBackend(
        host_of(tmp_path, PrivateSshd(tmp_path, tmp_path), port, identity_file=str(mine), ssh="fabric")
    )
    # The flood may be over the limit before the command is told to have started, or only after.
    with pytest.raises(RoostError, match=r"MiB more than the SSH window allows|MiB of unread bytes"):
        read_flood(backend)
    backend.close()
