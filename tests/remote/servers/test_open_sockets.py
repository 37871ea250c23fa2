"""SGLang's own sockets that ask nobody: DP attention is refused where other people have processes."""

from __future__ import annotations

import pytest

from remote.servers.lifecycle.command import TRUSTED, _refuse_open_sockets
from remote.servers.probing.users import other_people
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
    assert str(UID) not in other_people()
