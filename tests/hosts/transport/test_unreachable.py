"""An unreachable host: the sentence says what was tried, what came back and what to do."""

from __future__ import annotations

import socket

import pytest

from hosts.errors import HostUnreachableError
from hosts.inventory.model import Host
from hosts.transport.sentences import unreachable
from hosts.transport.ssh import SshBackend

HOST = Host(name="gpu1", address="127.0.0.1", user="me", ssh_config="/nowhere", connect_timeout=1.0)


@pytest.mark.parametrize("ssh", ["fabric", "openssh"])
def test_a_refused_port_is_called_refused_and_not_a_timeout(ssh: str) -> None:
    with socket.socket() as bound:  # bound and not listening: nobody else can take it meanwhile
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(HostUnreachableError) as caught:
            SshBackend(HOST.model_copy(update={"ssh_port": port, "ssh": ssh})).open(["true"])
    assert caught.value.message.startswith(f"me@127.0.0.1:{port} could not be reached: connection refused")
    assert "ssh_port" in caught.value.remedy


@pytest.mark.parametrize(
    ("error", "message", "remedy"),
    [
        (TimeoutError(), "me@gpu1:22 could not be reached within 1 s: no answer.", "network"),
        (socket.gaierror(-2, "unknown"), "me@gpu1:22 could not be reached: the name does not resolve.", "`address`"),
    ],
)
def test_only_a_passed_deadline_is_named_in_the_error(error: Exception, message: str, remedy: str) -> None:
    explained = unreachable(error, "me@gpu1:22", 1.0)
    assert explained.message == message
    assert remedy in explained.remedy
