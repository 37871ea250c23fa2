"""SGLang's sockets without authentication: DP attention is refused if other people have processes on the host."""

from __future__ import annotations

import subprocess
import sys

import pytest

from remote.servers.lifecycle.command import TRUSTED, _refuse_open_sockets
from remote.servers.probing.holders import other_people
from remote.shared.errors import HostError
from remote.shared.messages.attach import CheckedFlags
from tests.attacks.stranger import UID, needs_root, start_as


def flags(**values: object) -> CheckedFlags:
    return CheckedFlags(sglang="0.5.23", flags=[], added=[], values=values, defaults={})


@pytest.mark.processes
@needs_root
def test_dp_attention_is_refused_while_another_user_has_a_process() -> None:
    stranger = start_as("print('there', flush=True); sys.stdin.read()")
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "there\n"
        assert str(UID) in other_people()
        with pytest.raises(HostError, match=r"any user of this host can run code .*Use a host of your own"):
            _refuse_open_sockets(flags(enable_dp_attention=True), {})
        _refuse_open_sockets(flags(enable_dp_attention=True), {TRUSTED: "1"})
        _refuse_open_sockets(flags(enable_dp_attention=False), {})
    finally:
        stranger.communicate()


RECEIVES = """
import os, pickle, sys, zmq
from sglang.srt.managers.io_struct import sock_recv
from sglang.srt.utils.network import get_zmq_socket
class Order:
    def __reduce__(self):
        return (os.getuid, ())
port, socket = get_zmq_socket(zmq.Context(), zmq.PULL, None, True)
if os.fork() == 0:
    os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
    context = zmq.Context()
    sender = context.socket(zmq.PUSH)
    sender.connect(f"tcp://127.0.0.1:{port}")
    sender.send(pickle.dumps(Order()))
    sender.close(); context.term(); os._exit(0)
socket.setsockopt(zmq.RCVTIMEO, 30_000)
print("ran as user", sock_recv(socket))
"""


@pytest.mark.engine
@needs_root
def test_sglang_s_own_sockets_run_what_another_user_sends() -> None:
    """Why DP attention is refused. If this fails, SGLang has closed them, and the refusal has to be looked at again."""
    command = [sys.executable, "-c", RECEIVES, str(UID)]
    said = subprocess.run(command, cwd="/", stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout
    assert said.splitlines()[-1] == "ran as user 0"
