"""Open records move to another host during a run, and each record is done once."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from remote.context import Context
from remote.report import Report
from remote.shared.errors import UsageError
from remote.shared.messages.extract import RunRequest
from remote.shared.messages.lease import Lease, LeaseRequest, LeasesRequest, LeasesResult, Moved, TakeRequest
from remote.shared.paths import Workdir
from remote.shared.shard.tensorfile import TensorFile
from remote.work import moving
from remote.work.verbs import status
from tests.remote.extract.conftest import Host, identity, tokens_of
from tests.remote.extract.standin_process import Pool, until

LENGTHS = [8 + number * 7 % 50 for number in range(60)]


class Told(Report):
    """What a verb streams, kept."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.items: list[Lease] = []

    def item(self, value: object) -> None:
        assert isinstance(value, Lease)
        self.items.append(value)


@pytest.fixture
def other(tmp_path: Path, pool: Pool) -> Iterator[Host]:
    """A second host, whose share of the run is what `first` and `epoch` say."""
    dump_dir = Path(tempfile.mkdtemp(prefix="roost-test-", dir="/dev/shm"))
    made = Host(Workdir(tmp_path / "another host"), dump_dir, pool)
    made.workdir.root.mkdir()
    yield made
    shutil.rmtree(dump_dir, ignore_errors=True)


def lease(host: Host, holder: str = "there", **fields: object) -> list[Lease]:
    told = Told()
    request = LeaseRequest.model_validate({"identity": identity(), "epoch": 1, "holder": holder, **fields})
    result = moving.lease(request, Context(host.workdir, told))
    assert result.leases == len(told.items)
    assert result.tokens == sum(one.tokens for one in told.items)
    return told.items


def take(host: Host, leases: list[Lease], epoch: int = 1) -> int:
    return moving.take(TakeRequest(identity=identity(), epoch=epoch, leases=leases), host.context).records


def members(leases: Sequence[Lease | Moved]) -> set[int]:
    return {index for one in leases for start, stop in one.ranges for index in range(start, stop)}


def leases(host: Host) -> LeasesResult:
    return moving.leases(LeasesRequest(identity=identity()), host.context)


def assigned(host: Host) -> tuple[int, int, int]:
    counts = status(RunRequest(run=identity().name), host.context).state.counts
    return counts.assigned, counts.tokens_assigned, counts.done


def test_records_given_away_are_done_only_by_the_other_host(host: Host, other: Host) -> None:
    mine, theirs = host.serve(), other.serve()
    host.assign(LENGTHS)
    other.assign([5, 6], first=100, host="there")
    went = lease(host, tokens=600)
    assert sum(one.tokens for one in went) >= 600
    assert take(other, went) == len(members(went))
    assert take(other, went) == 0
    assert assigned(host) == (60 - len(members(went)), sum(LENGTHS) - sum(one.tokens for one in went), 0)
    assert assigned(other) == (2 + len(members(went)), 11 + sum(one.tokens for one in went), 0)
    for one in (host, other):
        assert one.extract().status == "complete"
    assert set(host.states()) == set(range(60)) - members(went)
    assert set(other.states()) == {100, 101} | members(went)
    assert {int(index) for index in mine.seen()} == set(host.states())
    assert {int(index) for index in theirs.seen()} == set(other.states())
    for index in members(went):
        tokens = TensorFile.open(other.paths.shard(index)).array("token_ids")
        np.testing.assert_array_equal(tokens, tokens_of(index, LENGTHS[index]))


def test_leases_that_did_not_reach_the_other_host_are_sent_again(host: Host, other: Host) -> None:
    host.assign(LENGTHS)
    other.assign([5], first=100, host="there")
    went = lease(host, tokens=300)
    assert {one.id for one in leases(host).given} == {one.id for one in went}
    assert leases(other).taken == []
    again = lease(host, again=[one.id for one in went])
    assert sorted(again, key=lambda one: one.id) == sorted(went, key=lambda one: one.id)
    assert lease(host, "somebody else", again=[one.id for one in went]) == []
    take(other, again)
    assert {one.id for one in leases(other).taken} == {one.id for one in went}


def test_a_running_session_never_begins_records_given_away(host: Host, other: Host) -> None:
    """Chunks go while the run is under way, at any moments; what the giver has begun stays with it."""
    server = host.serve(delay=0.02, high_water=60_000)
    other.serve()
    host.assign(LENGTHS)
    other.assign([5], first=100, host="there")
    ended = threading.Event()
    extraction = threading.Thread(target=_work_here, args=(host, ended))
    extraction.start()
    went: list[Lease] = []
    draw = random.Random(7)
    while not ended.is_set() and len(members(went)) < 30:
        until(lambda: ended.is_set() or len(server.seen()) > draw.randrange(20), "some records")
        took = lease(host, tokens=draw.randrange(1, 200))
        take(other, took)
        went += took
    extraction.join(60)
    assert other.extract().status == "complete"
    assert members(went)
    assert set(host.states()) | set(other.states()) - {100} == set(range(60))
    assert set(host.states()).isdisjoint(other.states())
    assert {int(index) for index in server.seen()}.isdisjoint(members(went))


def _work_here(host: Host, ended: threading.Event) -> None:
    """The run's process without signal handlers, which only a main thread may have."""
    import asyncio

    from remote.extract.extractor import Extractor
    from remote.work.holding import Holding
    from remote.work.session import begin

    holding = Holding(host.paths)
    opened = begin(host.paths, holding, Extractor.refusals(holding.work))
    asyncio.run(Extractor(host.workdir, host.paths, holding, opened, host.context.report).run())
    ended.set()


def test_records_that_come_while_a_session_runs_are_done_by_the_same_process(host: Host, other: Host) -> None:
    host.assign(LENGTHS)
    other.serve(delay=0.05, high_water=20_000)
    other.assign(LENGTHS[:20], first=100, host="there")

    def come() -> None:
        until(other.paths.ledger.exists, "a session")
        take(other, lease(host, tokens=200))

    came = threading.Thread(target=come)
    came.start()
    state = other.extract()
    came.join()
    assert state.status == "complete"
    assert set(other.states()) - set(range(100, 120)) == members(leases(host).given)


def test_records_can_come_back_and_finished_records_stay(host: Host, other: Host) -> None:
    host.serve()
    host.assign(LENGTHS[:10])
    other.assign([5], first=100, host="there")
    take(other, lease(host, tokens=1))
    back = lease(other, "here", tokens=10_000)
    assert take(host, [one for one in back if 100 not in members([one])])
    assert host.extract().status == "complete"
    assert set(host.states()) == set(range(10))
    assert assigned(host)[0] == 10
    assert lease(host, tokens=1) == []


def test_a_record_too_long_for_the_other_host_stays(host: Host) -> None:
    host.assign([10, 900, 20])
    assert members(lease(host, tokens=10_000, longest=100)) == {0, 2}


def test_a_new_epoch_ends_every_lease(host: Host, other: Host) -> None:
    host.serve()
    host.assign(LENGTHS[:10])
    other.assign([5], first=100, host="there")
    went = lease(host, tokens=50)
    host.assign(LENGTHS[:10], epoch=2)
    with pytest.raises(UsageError, match="epoch 2 on this host"):
        lease(host, tokens=50)
    other.assign([5], epoch=2, first=100, host="there")
    with pytest.raises(UsageError, match="epoch 2 on this host"):
        take(other, went)
    assert host.extract().status == "complete"
    assert set(host.states()) == set(range(10))
