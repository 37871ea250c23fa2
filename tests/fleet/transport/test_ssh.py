"""The SSH backend against a real sshd: keys are checked, faults are sentences, one connection carries many calls."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from paramiko.ssh_exception import NoValidConnectionsError

from hosts.errors import AuthenticationError, HostError, HostKeyError, HostUnreachableError
from hosts.fleet import Fleet
from hosts.inventory.model import Host, Inventory
from hosts.practice.ports import free_port
from hosts.practice.sshd import PrivateSshd
from hosts.transport.openssh import ssh_command
from hosts.transport.sentences import unreachable
from hosts.transport.ssh import SshBackend
from hosts.transport.trust import Presented, look
from remote.shared.messages.hello import HelloRequest, HelloResult

pytestmark = pytest.mark.ssh


@dataclass
class Box:
    """A running sshd and the inventory entry that reaches it."""

    sshd: PrivateSshd
    host: Host
    pid: int


@pytest.fixture(params=["fabric", "openssh"])
def box(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Box]:
    sshd = PrivateSshd(tmp_path / "sshd", tmp_path / 'it\'s a "home" $HOME')
    ref, port = sshd.start()
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(sshd.known_hosts_line(port))
    host = Host(
        name="box",
        address="127.0.0.1",
        ssh_port=port,
        identity_file=str(sshd.client_key),
        ssh_config=str(tmp_path / "no-config"),
        known_hosts=str(known_hosts),
        connect_timeout=5,
        ssh=request.param,
        python=sys.executable,
        workdir="~/it's work; echo $x",
    )
    yield Box(sshd, host, ref.pid)
    sshd.stop(ref)


def hello(host: Host) -> HelloResult:
    backend = SshBackend(host)
    try:
        return backend.call("hello", HelloRequest(), HelloResult, deadline=30)
    finally:
        backend.close()


def test_a_verb_runs_in_a_hostile_home_and_workdir(box: Box) -> None:
    assert hello(box.host).workdir == str(box.sshd.home / "it's work; echo $x")


def test_a_login_shell_that_prints_does_no_harm(box: Box) -> None:
    (box.sshd.home / ".bashrc").write_text('echo welcome; echo \'{"type":"result","value":{}}\'\n')
    assert hello(box.host).version


def test_arguments_arrive_as_they_are(box: Box) -> None:
    hostile = ["$(touch pwned)", "a b", "'\"", ";exit 3", "*", "\n"]
    process = SshBackend(box.host).open(["printf", "%s|", *hostile])
    received = b""
    while chunk := process.read(4096, 10):
        received += chunk
    assert received.decode() == "".join(f"{argument}|" for argument in hostile)
    assert process.wait(5) == 0


def test_an_unknown_host_key_is_refused_until_it_is_trusted(box: Box, tmp_path: Path) -> None:
    host = box.host.model_copy(update={"known_hosts": str(tmp_path / "empty" / "known_hosts")})
    with pytest.raises(HostKeyError, match=r"is not known; nothing was sent.*inv trust --host box"):
        hello(host)
    key = seen(host).keys[0]
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(box.sshd.host_key) + ".pub"], capture_output=True, text=True, check=True
    )
    assert key.fingerprint in shown.stdout
    assert not key.known
    assert not key.added_to
    path = Path(look(host, lambda key: True).keys[0].added_to)
    assert path.stat().st_mode & 0o077 == 0
    assert hello(host).version
    assert seen(host).keys[0].known


def seen(host: Host) -> Presented:
    return look(host, lambda key: False)


def test_a_changed_host_key_is_refused_and_never_replaced(box: Box, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    kind, blob = other.with_suffix(".pub").read_text().split()[:2]
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{box.host.ssh_port} {kind} {blob}\n")
    with pytest.raises(HostKeyError, match=r"has CHANGED.*ssh-keygen .* -R '\[127\.0\.0\.1\]:"):
        hello(box.host)
    with pytest.raises(HostKeyError, match="has CHANGED"):
        look(box.host, lambda key: True)


def test_a_refused_key_says_what_to_check(box: Box, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(wrong)], check=True)
    with pytest.raises(AuthenticationError, match=r"refused the login.*identity_file"):
        hello(box.host.model_copy(update={"identity_file": str(wrong)}))


def test_a_missing_identity_file_is_one_sentence(box: Box) -> None:
    with pytest.raises((AuthenticationError, HostUnreachableError), match="no-such-key"):
        hello(box.host.model_copy(update={"identity_file": "/no-such-key"}))


def test_a_closed_port_and_an_unknown_name_have_different_errors(box: Box) -> None:
    with pytest.raises(HostUnreachableError, match="connection refused"):
        hello(box.host.model_copy(update={"ssh_port": free_port()}))
    with pytest.raises(HostUnreachableError, match="does not resolve"):
        hello(box.host.model_copy(update={"address": "no-such-host.invalid"}))


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.EHOSTUNREACH, "no route to host"), (errno.ENETUNREACH, "network is unreachable")],
)
def test_a_cut_link_is_not_called_a_refused_connection(number: int, reason: str) -> None:
    cut = OSError(number, os.strerror(number))
    for error in (cut, NoValidConnectionsError({("10.0.0.1", 22): cut})):
        assert reason in str(unreachable(error, "root@10.0.0.1:22", 5))


def test_a_host_that_accepts_and_never_answers_ends_at_the_connect_timeout(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = box.host.model_copy(update={"ssh_port": silent.getsockname()[1], "connect_timeout": 1.0})
        with pytest.raises(HostUnreachableError, match="within 1 s: the connection was taken and no SSH server spoke"):
            hello(host)


def test_a_missing_python_names_the_key_to_set(box: Box) -> None:
    with pytest.raises(Exception, match=r"did not find the command.*Set `python`"):
        hello(box.host.model_copy(update={"python": "/no/such/python3"}))


def test_one_connection_carries_many_calls_at_once_and_comes_back_after_a_cut(box: Box) -> None:
    backend = SshBackend(box.host)
    results: list[HelloResult] = []

    def call() -> None:
        results.append(backend.call("hello", HelloRequest(), HelloResult, deadline=60))

    backend.call("hello", HelloRequest(), HelloResult, deadline=60)
    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    sessions = subprocess.run(["pgrep", "-P", str(box.pid)], capture_output=True, text=True, check=True).stdout.split()
    assert len(sessions) == 1
    os.kill(int(sessions[0]), signal.SIGKILL)
    with contextlib.suppress(HostError):  # the first call may still meet the broken connection
        call()
    call()
    backend.close()


def test_an_unreachable_host_does_not_affect_the_others(box: Box, tmp_path: Path) -> None:
    gone = box.host.model_copy(update={"name": "gone", "ssh_port": free_port()})
    local = Host(name="local", connection="local")
    fleet = Fleet(Inventory(path=tmp_path, hosts={}, local=local), [gone, box.host])
    outcomes = fleet.call("hello", HelloRequest(), HelloResult)
    fleet.close()
    assert [outcome.ok for outcome in outcomes] == [False, True]
    assert isinstance(outcomes[0].error, HostUnreachableError)


def test_openssh_itself_reaches_the_same_host_with_the_same_checks(box: Box, tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    command = ssh_command(box.host, folder)
    assert subprocess.run([*command, "echo", "here"], capture_output=True, text=True, check=True).stdout == "here\n"
    stranger = box.host.model_copy(update={"known_hosts": str(tmp_path / "none")})
    refused = subprocess.run([*ssh_command(stranger, folder), "true"], capture_output=True, text=True, check=False)
    assert refused.returncode == 255
    assert "verification failed" in refused.stderr
