"""What an order starts: nothing if the same server runs, unless a restart was asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from remote.context import Context
from remote.servers.lifecycle import serve
from remote.servers.lifecycle.command import Launch
from remote.servers.lifecycle.serve import Order
from remote.shared.errors import HostError
from remote.shared.messages.server import ServeRequest, ServerState

Start = Callable[..., ServerState]


def test_the_same_server_is_left_alone_by_serve_and_started_anew_by_restart(prepare: Start) -> None:
    state = prepare()
    launch = Launch(state.spec, state.command, {})
    assert not Order(launch, state).starts
    assert Order(launch, state, restarts=True).starts
    assert Order(launch, None).starts
    assert Order(Launch(state.spec, [*state.command, "--more"], {}), state).starts


@pytest.mark.processes
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"mode": "extract"},
            r"A server 'main' in mode 'serve' \(not in 'extract', as asked for\) has been running since",
        ),
        ({"mode": "serve", "tp": 2}, r"A server 'main' with another command has been running since"),
    ],
)
def test_errors_that_the_record_shows_are_raised_before_sglang_is_asked(
    start: Start,
    until: Start,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, object],
    said: str,
) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("SGLang was asked")

    monkeypatch.setattr(serve, "plan_launch", asked)
    start(mode="serve")
    other = until("ready").spec.model_copy(update=change)
    with pytest.raises(HostError, match=said) as caught:
        serve.serve(ServeRequest(servers=[other]), context)
    assert "`inv restart`" in caught.value.remedy
