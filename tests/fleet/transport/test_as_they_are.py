"""Hosts as they are: login shells, start-up files, limits of sessions and logins; with Fabric and with OpenSSH."""

from __future__ import annotations

import getpass
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hosts.doctor.network import measure_clock
from hosts.errors import ProtocolError, RoostError
from hosts.fleet import Fleet
from hosts.inventory.model import Host, Inventory
from hosts.practice.sshd import PrivateSshd
from hosts.transport.ssh import SshBackend
from hosts.transport.trust import look
from remote.shared.messages.hello import HelloRequest, HelloResult
from remote.shared.messages.server import ProcessRef

pytestmark = pytest.mark.ssh

Start = Callable[..., Host]
BACKENDS = ["fabric", "openssh"]
HOSTILE = ["$(touch pwned)", "a b", "'\"", "!x", "\\", "*", "\n", "~", "\N{SNOWMAN}", ""]


@pytest.fixture(params=BACKENDS)
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """`start(MaxSessions="1")` is a host on an sshd with these settings; `home` is its home folder."""
    running: list[tuple[PrivateSshd, ProcessRef]] = []

    def new(shell: str = "", **settings: str) -> Host:
        folder = tmp_path / f"box{len(running)}"
        if shell:
            settings["ForceCommand"] = f'{shell} -c "$SSH_ORIGINAL_COMMAND"'
        sshd = PrivateSshd(folder / "etc", folder / "home", settings)
        ref, port = sshd.start()
        running.append((sshd, ref))
        known_hosts = tmp_path / "known_hosts"
        with known_hosts.open("a") as stream:
            stream.write(sshd.known_hosts_line(port))
        return Host(
            name=f"box{len(running)}",
            address=f"127.0.0.1:{port}",
            identity_file=str(sshd.client_key),
            ssh_config=str(tmp_path / "no-config"),
            known_hosts=str(known_hosts),
            connect_timeout=10,
            python=sys.executable,
            ssh=request.param,
        )

    yield new
    for sshd, ref in running:
        sshd.stop(ref)


def home(host: Host) -> Path:
    return Path(str(host.identity_file)).parents[1] / "home"


def hello(host: Host) -> HelloResult:
    backend = SshBackend(host)
    try:
        return backend.call("hello", HelloRequest(), HelloResult, deadline=60)
    finally:
        backend.close()


@pytest.mark.parametrize("shell", ["bash", "zsh", "dash", "tcsh", "fish"])
def test_any_login_shell_runs_a_verb_and_passes_arguments_on_as_they_are(start: Start, shell: str) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"type: sudo apt-get install {shell}")
    host = start(shell=program)
    assert hello(host).version
    backend = SshBackend(host)
    process = backend.open(["printf", "%s|", *HOSTILE])
    received = b""
    while chunk := process.read(4096, 30):
        received += chunk
    assert received.decode() == "".join(f"{argument}|" for argument in HOSTILE)
    process.close()
    backend.close()


def test_a_python_below_the_home_folder_is_found(start: Start) -> None:
    host = start()
    (home(host) / "my venv").mkdir()
    (home(host) / "my venv" / "python").symlink_to(sys.executable)
    assert hello(host.model_copy(update={"python": "~/my venv/python"})).version


def test_a_terminal_title_without_an_end_of_line_does_no_harm(start: Start) -> None:
    host = start()
    (home(host) / ".bashrc").write_text("printf '\\033]0;title\\007'\n")
    assert hello(host).version
    backend = SshBackend(host)
    assert abs(measure_clock(backend).clock_skew_seconds) < 5
    backend.close()


@pytest.mark.parametrize("ends", ["echo no work today; exit 3", "exec false", "exec echo attached"])
def test_a_start_up_file_that_ends_the_session_is_one_sentence(start: Start, ends: str) -> None:
    host = start()
    (home(host) / ".bashrc").write_text(f"{ends}\n")
    with pytest.raises(ProtocolError, match="before Python started on the host") as caught:
        hello(host)
    assert "start-up file" in caught.value.remedy


def test_a_forced_command_is_one_sentence_that_shows_what_it_printed(start: Start) -> None:
    with pytest.raises(ProtocolError, match=r"the session printed: .*only backups here.*"):
        hello(start(ForceCommand="echo only backups here"))


def test_an_account_without_a_login_is_one_sentence_that_shows_what_it_printed(start: Start) -> None:
    with pytest.raises(ProtocolError, match=r"the session printed: .*account is currently not available"):
        hello(start(shell=shutil.which("nologin", path="/usr/sbin:/sbin") or "/usr/sbin/nologin"))


@pytest.mark.parametrize("most", ["1", "2"])
def test_calls_wait_for_a_free_session_or_get_another_connection(start: Start, most: str) -> None:
    host = start(MaxSessions=most)
    backend = SshBackend(host)
    backend.call("hello", HelloRequest(), HelloResult, deadline=60)
    held = backend.open(["cat"])  # a call that others must not cut
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(backend.call, "hello", HelloRequest(), HelloResult, deadline=60) for _ in range(6)]
        assert all(call.result().version for call in calls)
    held.write(b"still here\n")
    assert held.read(100, 10) == b"still here\n"
    held.close()
    backend.close()


@pytest.mark.parametrize("limit", ["10:30:100", "3:50:10"])
def test_many_inventory_entries_on_one_sshd_can_all_log_in(start: Start, tmp_path: Path, limit: str) -> None:
    host = start(MaxStartups=limit)
    hosts = [host.model_copy(update={"name": f"entry{number}"}) for number in range(24)]
    fleet = Fleet(Inventory(path=tmp_path, hosts={}, local=Host(name="local", connection="local")), hosts)
    outcomes = fleet.each(lambda backend: backend.open(["true"]).wait(60))
    fleet.close()
    assert [outcome.value for outcome in outcomes] == [0] * len(hosts), outcomes


def test_many_hosts_behind_one_bastion_can_all_log_in(start: Start, tmp_path: Path) -> None:
    """Forty entries, one jump host in front of them and one sshd behind it, both with sshd's default MaxStartups."""
    jump, target = start(MaxStartups="10:30:100"), start(MaxStartups="10:30:100")
    config = tmp_path / "config"
    config.write_text(
        f"Host jump\n HostName 127.0.0.1\n Port {jump.ssh_port}\n IdentityFile {jump.identity_file}\n"
        f" IdentitiesOnly yes\nHost gpu*\n HostName 127.0.0.1\n Port {target.ssh_port}\n ProxyJump jump\n"
        f" IdentityFile {target.identity_file}\n IdentitiesOnly yes\n"
    )
    update = {"ssh_port": None, "identity_file": None, "ssh_config": str(config), "connect_timeout": 60.0}
    hosts = [target.model_copy(update={**update, "name": f"gpu{n}", "address": f"gpu{n}"}) for n in range(40)]
    fleet = Fleet(Inventory(path=tmp_path, hosts={}, local=Host(name="local", connection="local")), hosts)
    outcomes = fleet.each(lambda backend: backend.open(["true"]).wait(120))
    fleet.close()
    assert [outcome.value for outcome in outcomes] == [0] * len(hosts), outcomes


def test_a_forwarded_agent_and_a_remote_command_of_the_configuration_are_left_out(start: Start, tmp_path: Path) -> None:
    host = start()
    config = tmp_path / "config"
    config.write_text("Host *\n ForwardAgent yes\n RemoteCommand tmux new -A\n RequestTTY force\n")
    backend = SshBackend(host.model_copy(update={"ssh_config": str(config)}))
    process = backend.open(["sh", "-c", 'echo "${SSH_AUTH_SOCK:-no agent} ${SSH_TTY:-no terminal}"'])
    assert process.read(100, 30) == b"no agent no terminal\n"
    process.close()
    backend.close()


def slow_login(host_key_folder: Path, seconds: int) -> dict[str, str]:
    """Return settings with which sshd takes `seconds` to look up a user's key."""
    command = f"sleep {seconds}; cat {host_key_folder}/client_key.pub"
    return {
        "AuthorizedKeysFile": "none",
        "AuthorizedKeysCommand": f'/bin/sh -c "{command}"',
        "AuthorizedKeysCommandUser": getpass.getuser(),
    }


def test_a_login_within_a_short_grace_time_succeeds(start: Start, tmp_path: Path) -> None:
    host = start(LoginGraceTime="5", **slow_login(tmp_path / "box0" / "etc", 1))  # sshd looks twice
    assert hello(host).version


def test_a_login_of_many_seconds_is_waited_for(start: Start, tmp_path: Path) -> None:
    host = start(LoginGraceTime="120", **slow_login(tmp_path / "box0" / "etc", 8))
    assert hello(host.model_copy(update={"connect_timeout": 1.0})).version


def test_a_login_that_takes_longer_than_sshd_grants_is_a_sentence(start: Start, tmp_path: Path) -> None:
    host = start(LoginGraceTime="1", **slow_login(tmp_path / "box0" / "etc", 30))
    with pytest.raises(RoostError, match=r"127\.0\.0\.1"):
        hello(host)


def test_a_slow_login_is_waited_for(start: Start) -> None:
    host = start()
    (home(host) / ".bashrc").write_text("sleep 3\n")
    assert hello(host.model_copy(update={"connect_timeout": 1.0})).version


@pytest.mark.parametrize(("limit", "blocks"), [("1M", 64), ("64M", 1200)])
def test_rekeying_in_the_middle_of_a_stream_does_not_disturb_it(start: Start, limit: str, blocks: int) -> None:
    backend = SshBackend(start(RekeyLimit=limit, Subsystem="none /bin/false"))
    process = backend.open([sys.executable, "-c", f"import os\nfor _ in range({blocks}): os.write(1, b'x' * 65536)"])
    received = 0
    while chunk := process.read(1 << 16, 60):
        received += len(chunk)
    assert received == blocks * 65536
    process.close()
    backend.close()


def test_jump_hosts_are_used_and_each_key_is_trusted_by_its_own_name(start: Start, tmp_path: Path) -> None:
    jump, target = start(), start()
    config = tmp_path / "config"
    config.write_text(
        f"Host jump\n HostName 127.0.0.1\n Port {jump.ssh_port}\n IdentityFile {jump.identity_file}\n"
        f" IdentitiesOnly yes\nHost target\n HostName 127.0.0.1\n Port {target.ssh_port}\n ProxyJump jump\n"
        f" HostKeyAlias gpubox\n IdentityFile {target.identity_file}\n IdentitiesOnly yes\n"
    )
    known_hosts = tmp_path / "new"
    host = target.model_copy(
        update={
            **{"address": "target", "ssh_port": None, "identity_file": None},
            **{"ssh_config": str(config), "known_hosts": str(known_hosts)},
        }
    )
    first = look(host, lambda key: False)
    assert [key.name for key in first.keys] == [f"[127.0.0.1]:{jump.ssh_port}"]
    assert first.unseen == ["gpubox"]
    assert [bool(key.added_to) for key in look(host, lambda key: True).keys] == [True, True]
    assert [line.split()[0] for line in known_hosts.read_text().splitlines()] == [first.keys[0].name, "gpubox"]
    assert hello(host).version


def test_concurrent_calls_recover_from_a_broken_connection(start: Start) -> None:
    backend = SshBackend(start())
    backend.call("hello", HelloRequest(), HelloResult, deadline=60)
    closers = [threading.Thread(target=backend.close) for _ in range(2)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    assert backend.call("hello", HelloRequest(), HelloResult, deadline=60).version
    backend.close()
