"""A run is verified on its host: ledger, shards and the assignment's own tokens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import xxhash

from remote.context import Context
from remote.data.assign import assign
from remote.data.verify import verify
from remote.shared.errors import UsageError
from remote.shared.messages.dataset import AssignRequest, HostShare
from remote.shared.messages.extract import Assignment
from remote.shared.messages.verify import VerifyRequest, VerifyResult
from remote.shared.paths import RunPaths
from remote.work import epochs
from remote.work.ledger import Ledger, Row
from tests.identities import run_identity
from tests.remote.data.places import Destination, make_destination
from tests.remote.data.samples import MakeTokenizer


@pytest.fixture
def run(tmp_path: Path, make_tokenizer: MakeTokenizer, context: Context) -> RunPaths:
    """Records 1 to 4 of six: 1 and 2 are done, 3 is quarantined, 4 was delivered and freed, 5 is open."""
    place = make_destination(tmp_path / "dest", make_tokenizer(), context)
    paths = context.workdir.run("r")
    assignment = Assignment(
        identity=place.identity,
        host="a",
        epoch=1,
        ranges=[],
        records=0,
        tokens=0,
        vocab_size=0,
        context_length=4096,
    )
    share = HostShare(assignment=assignment, ranges=[(1, 6)], folder=str(paths.assignment(1)))
    assign(AssignRequest(dataset=str(place.folder), shares=[share]), context)
    paths.shards.mkdir(parents=True)
    with Ledger(paths.ledger) as ledger:
        rows = [_done(place, paths, index) for index in (1, 2, 4)]
        ledger.record(rows)
        ledger.record([Row(3, "quarantined", 0, 1, cause="poison")])
        ledger.free([(4, rows[-1].xxh3)])
    paths.shard(4).unlink()
    return paths


def _done(place: Destination, paths: RunPaths, index: int) -> Row:
    shutil.copyfile(place.shard(index), paths.shard(index))
    content = paths.shard(index).read_bytes()
    rows = len(place.token_ids(index))
    return Row(index, "done", rows, 1, size_bytes=len(content), xxh3=xxhash.xxh3_128_hexdigest(content))


def checked(context: Context) -> VerifyResult:
    described = epochs.read_description(context.workdir.run("r").assignment(1))
    return verify(VerifyRequest(run=described.identity), context)


def test_done_delivered_quarantined_and_open_records_are_distinguished(run: RunPaths, context: Context) -> None:
    result = checked(context)
    assert (result.records, result.expected, result.quarantined, result.delivered) == (2, 5, 1, 1)
    assert result.holes == [(5, 6)]
    assert result.faults == 0
    assert not result.complete


def test_a_shard_that_changed_on_the_host_is_queued_again(run: RunPaths, context: Context) -> None:
    content = bytearray(run.shard(2).read_bytes())
    content[-1] ^= 1
    run.shard(2).write_bytes(content)
    shutil.copyfile(run.shard(1), run.shard(5))
    result = checked(context)
    assert result.by_kind == {"digest": 1, "stranger": 1}
    assert result.requeue == [(2, 3)]


def test_an_unknown_run_is_refused(context: Context) -> None:
    with pytest.raises(UsageError, match="'nowhere'"):
        verify(VerifyRequest(run=run_identity(name="nowhere")), context)
