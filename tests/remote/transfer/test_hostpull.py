"""One host's streams: how many are begun, and which of them stay."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from remote.shared.transfer import hostpull
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.engine import Engine
from remote.shared.transfer.tuning import MOST_STREAMS, Cores
from tests.remote.transfer.origins import SENDER, Shelf, bounds_of, wish
from tests.shards import SMALLEST, shard

SLOW_LOGIN = "echo >> {log}; sleep 0.6; exec {sender}"


@pytest.mark.parametrize("busy", [False, True])
def test_a_slow_login_is_not_taken_for_a_long_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: bool) -> None:
    """Streams are begun beside it while the cores idle; once the way is known to be short they are given up."""
    monkeypatch.setattr(Cores, "at_work", lambda self: 1.0 if busy else 0.0)
    monkeypatch.setattr(hostpull, "streams_for", lambda round_trip: 1)  # however long a busy machine takes to answer
    begun = tmp_path / "begun"
    login = ["sh", "-c", SLOW_LOGIN.format(log=shlex.quote(str(begun)), sender=shlex.join(SENDER))]
    host = Shelf("host", tmp_path / "source", {0: shard(SMALLEST)}, login)
    with Destination(tmp_path / "destination") as destination, Engine(destination, wish(), bounds_of(host)) as engine:
        tally = engine.bring(host)
    assert (tally.delivered, tally.streams) == (1, 1)
    count = begun.read_text().count("\n")
    assert count == 1 if busy else 1 < count <= MOST_STREAMS
