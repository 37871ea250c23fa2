"""One host's streams: how many are begun, and which of them stay."""

from __future__ import annotations

import shlex
import sys
import threading
from pathlib import Path

import pytest
import xxhash

from remote.shared.messages.extract import ShardRow
from remote.shared.paths import shard_name
from remote.shared.transfer import hostpull
from remote.shared.transfer.delivery import Delivery
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.hostpull import HostPull, Limits, Source
from remote.shared.transfer.rate import RateLimit
from remote.shared.transfer.stream import SOURCE
from remote.shared.transfer.tuning import MOST_STREAMS, Cores

CONTENT = bytes(range(256)) * 16
SLOW_LOGIN = "echo >> {log}; sleep 0.6; exec {sender}"


@pytest.mark.parametrize("busy", [False, True])
def test_a_slow_login_is_not_taken_for_a_long_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: bool) -> None:
    """Streams are begun beside it while the cores idle; once the way is known to be short they are given up."""
    monkeypatch.setattr(Cores, "at_work", lambda self: 1.0 if busy else 0.0)
    monkeypatch.setattr(hostpull, "streams_for", lambda round_trip: 1)  # however long a busy machine takes to answer
    source = tmp_path / "source"
    source.mkdir()
    (source / shard_name(0)).write_bytes(CONTENT)
    row = ShardRow(index=0, rows=1, size_bytes=len(CONTENT), xxh3=xxhash.xxh3_128_hexdigest(CONTENT), epoch=1)
    begun = tmp_path / "begun"
    sender = shlex.join([sys.executable, "-I", "-S", "-c", SOURCE])
    command = ["sh", "-c", SLOW_LOGIN.format(log=shlex.quote(str(begun)), sender=sender)]
    with Destination(tmp_path / "destination") as destination, Delivery(destination) as delivery:
        pull = HostPull("host", destination, delivery, Limits(), RateLimit(None), threading.Event())
        report = pull.run(Source("host", command, str(source)), [row], lambda rows: None)
    assert report.error is None
    assert report.delivered == 1
    assert report.streams == 1
    count = begun.read_text().count("\n")
    assert count == 1 if busy else 1 < count <= MOST_STREAMS
