"""`idle_stop` on a real supervisor: an idle server is ended, said, and not started again."""

from __future__ import annotations

from collections.abc import Callable

from remote.context import Context
from remote.history.recorder import Recorder
from remote.history.store import to_read
from remote.servers.lifecycle import ending
from remote.shared.files import write_whole
from remote.shared.messages.history import Settings
from remote.shared.messages.server import ServerState

DEADLINE_SECONDS = 60.0


def test_an_idle_server_is_ended_and_its_history_says_why(
    context: Context, start: Callable[..., ServerState], until: Callable[..., ServerState]
) -> None:
    start(restart=True)
    until("ready")
    settings = Settings(host="gpu1", idle_stop_seconds=0.0)
    write_whole(context.workdir.recorder.settings, settings.model_dump_json().encode())
    recorder = Recorder(context)
    history = context.workdir.server("main").history

    def said() -> list[str]:
        recorder.look()
        with to_read(history) as kept:
            return [event.kind for event in kept.events()]

    assert ending.wait_until(lambda: "idle-stopped" in said(), DEADLINE_SECONDS)
    assert until("stopped").cause == ""
    assert said()[-2:] == ["stopped", "idle-stopped"] or said()[-2:] == ["idle-stopped", "stopped"]
