"""Whatever a host's end of a pull sends: nothing is written but the record's own part, and no more than it may hold."""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
from collections import deque
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from remote.shared.messages.extract import ShardRow
from remote.shared.messages.transfer import HostTally, Wish
from remote.shared.transfer import stream
from remote.shared.transfer.books import Books
from remote.shared.transfer.bounds import Bounds
from remote.shared.transfer.delivery import Delivery
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.landing import Landing, Range
from remote.shared.transfer.lane import Lane, Way
from remote.shared.transfer.rate import RateLimit
from remote.shared.transfer.sender import BLOCK_BYTES, DATA, DIGESTS, FRAME, PACKED, PONG, REFUSED
from remote.shared.transfer.stream import Stream, StreamBrokenError, StreamLost
from remote.shared.transfer.work import Job, Pull, Work
from tests.hostile import examples
from tests.shards import IDENTITY, shard

CONTENT = shard(10_240)
ROW = ShardRow(index=3, rows=1, size_bytes=len(CONTENT), xxh3=xxhash.xxh3_128_hexdigest(CONTENT), epoch=1)
BOUNDS = Bounds(IDENTITY, 20)
frames = st.builds(
    lambda kind, ticket, length, payload: FRAME.pack(kind, ticket, length) + payload,
    st.sampled_from([PONG, DATA, DIGESTS, REFUSED, PACKED, 77]),
    st.sampled_from([3, 3, 3, 0, 4, (1 << 32) - 1]),
    st.sampled_from([0, 1, 16, 40, len(CONTENT), len(CONTENT) + 1, 1 << 20, 1 << 40, (1 << 64) - 1]),
    st.one_of(st.binary(max_size=64), st.just(CONTENT), st.just(bytes(len(CONTENT)))),
)


class Recorded(Stream):
    """A stream whose far end said all this, and then hung up."""

    def __init__(self, said: bytes) -> None:
        self._said = memoryview(said)

    def read_into(self, view: memoryview) -> int:
        size = min(len(view), len(self._said))
        if not size:
            raise StreamLost("it hung up")
        view[:size] = self._said[:size]
        self._said = self._said[size:]
        return size


def lane_with(destination: Destination, wanted: Range | None) -> tuple[Lane, HostTally]:
    """A lane that has asked for one thing."""
    tally, stop = HostTally(), threading.Event()
    books = Books(destination, stop)
    books.open("host")
    books.offer("host", [ROW])
    work = Work(
        "host",
        Pull(destination, Wish(run="run"), BOUNDS, books, Delivery(destination, stop.set), RateLimit(None), stop),
        tally,
    )
    job = work.take()
    assert job is not None
    lane = Lane(Way([], "", packed=True), work, "lane")
    lane._pending = deque([Job(job.landing, wanted, ROW.size_bytes)])
    return lane, tally


def files_below(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


@examples(75)
@given(st.one_of(frames, st.binary(max_size=80)), st.booleans())
def test_an_answer_of_any_kind_harms_nobody(tmp_path_factory: pytest.TempPathFactory, said: bytes, data: bool) -> None:
    root = tmp_path_factory.mktemp("outside")
    with Destination(root / "destination") as destination:
        destination.part(ROW.index).write_bytes(b"left by an earlier pull")
        lane, tally = lane_with(destination, Range(0, len(CONTENT)) if data else None)
        with contextlib.suppress(StreamLost, StreamBrokenError):
            lane._take(Recorded(said))
        for reason in tally.failed.values():
            assert len(reason) <= 500
    found = files_below(root)
    part = found.pop("destination/roost/parts/hs_3.safetensors.part", 0)
    assert part <= ROW.size_bytes
    assert set(found) <= {"destination/roost/lock", "destination/roost/ledger.sqlite"}


def python(program: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program]


@pytest.mark.parametrize("program", ["while True: print('noise')", "import os\nwhile True: os.write(1, b'x' * 65536)"])
def test_endless_noise_instead_of_a_hello_is_cut_off(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "NOISE_BYTES", 20_000)
    with Stream(python(program), "/") as far, pytest.raises(StreamBrokenError, match="over"):
        far.hello()


def test_a_drip_of_noise_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HELLO_SECONDS", 0.3)
    program = "import time\nwhile True: print('.', end='', flush=True), time.sleep(0.01)"
    with Stream(python(program), "/") as far, pytest.raises(StreamLost, match="in time"):
        far.hello()


def test_of_endless_words_on_stderr_the_last_ones_are_kept() -> None:
    program = "import os\nfor _ in range(300): os.write(2, b'x' * 65536)\nos.write(2, b' last words')"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Stream(python(program), "/") as far, pytest.raises(StreamLost) as caught:
        far.hello()
    assert str(caught.value).endswith("last words")
    assert len(str(caught.value)) <= 600
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000


def test_digests_of_blocks_that_do_not_exist_are_not_read(tmp_path: Path) -> None:
    with Destination(tmp_path) as destination:
        destination.part(ROW.index).write_bytes(CONTENT)
        lane, _ = lane_with(destination, None)
        blocks = -(-len(CONTENT) // BLOCK_BYTES)
        with pytest.raises(StreamBrokenError, match="possible"):
            lane._take(Recorded(FRAME.pack(DIGESTS, 3, 16 * (blocks + 1)) + bytes(64)))


@examples(60)
@given(st.integers(0, 5 * BLOCK_BYTES), st.binary(max_size=200))
def test_any_digests_leave_ranges_that_lie_inside_the_record(
    tmp_path_factory: pytest.TempPathFactory, left: int, digests: bytes
) -> None:
    row = ROW.model_copy(update={"size_bytes": 3 * BLOCK_BYTES + 5})
    part = tmp_path_factory.mktemp("part") / "part"
    with part.open("wb") as file:
        file.truncate(left)
    missing = Landing(row, part).keep_equal(digests)
    assert all(one.offset >= 0 and one.offset + one.length <= row.size_bytes for one in missing)
    assert part.stat().st_size <= row.size_bytes
