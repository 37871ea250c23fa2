"""Replicas share a run out: every record counts once, whoever comes, goes, dies or is slow."""

from __future__ import annotations

import errno
import signal
import sys
from pathlib import Path

import psutil
import pytest
import xxhash

from remote.context import Context
from remote.replica import desk, verb
from remote.report import Report
from remote.shared.leases.queue import Queue
from remote.shared.messages.extract import RunRequest, ShardsRequest
from remote.shared.messages.replica import ReplicaRequest
from remote.shared.paths import Workdir
from remote.shared.processes import MARK
from remote.work.ledger import Ledger
from remote.work.lots import lots
from remote.work.verbs import shards, status
from tests.remote.extract.conftest import RUN, identity
from tests.remote.extract.standin_process import until
from tests.remote.replica.conftest import LENGTHS, Cluster

pytestmark = pytest.mark.processes


def published(cluster: Cluster) -> int:
    return sum(1 for _ in Queue(cluster.run.queue, 1, "test.0").results.chunks())


def counted_once(cluster: Cluster) -> None:
    """The login host's view: every record is there, whole, with its row; none twice."""
    told = status(RunRequest(run=RUN), cluster.login)
    assert (told.word, told.state.counts.done, told.state.counts.tokens_done) == ("complete", 60, sum(LENGTHS))
    result = shards(ShardsRequest(identity=identity()), cluster.login)
    assert (result.rows, result.status) == (60, "complete")
    with Ledger(cluster.run.ledger) as ledger:
        rows = [row for _, row in ledger.shards()]
    assert sorted(row.index for row in rows) == list(range(60))
    for row in rows:
        content = cluster.run.shard(row.index).read_bytes()
        assert (len(content), xxhash.xxh3_128_hexdigest(content)) == (row.size_bytes, row.xxh3)


def test_one_replica_does_a_run_and_ends_its_server(cluster: Cluster) -> None:
    cluster.prepare()
    assert cluster.start("r0.0", "a").wait(120) == 0, cluster.log("r0.0")
    counted_once(cluster)
    assert not list(cluster.scratch("a").glob("runs/*/shards/hs_*"))


def test_a_replica_that_comes_when_all_is_published_says_that_the_run_is_over(cluster: Cluster) -> None:
    cluster.prepare()
    assert cluster.start("r0.0", "a").wait(120) == 0, cluster.log("r0.0")
    cluster.run.over.unlink()
    assert cluster.start("r1.0", "b").wait(60) == 0, cluster.log("r1.0")
    assert cluster.run.over.exists()


def test_a_killed_replica_s_chunks_are_done_by_the_others(cluster: Cluster) -> None:
    cluster.prepare(delay=0.05)
    first, second = cluster.start("r0.0", "a"), cluster.start("r1.0", "b")
    until(lambda: published(cluster) >= 2, "two chunks")
    first.kill()
    assert second.wait(120) == 0, cluster.log("r1.0")
    counted_once(cluster)


def test_a_killed_replica_s_next_attempt_on_its_node_has_each_record_once(cluster: Cluster) -> None:
    """The node still has the chunk that the killed attempt worked on, and the next attempt claims this chunk anew."""
    cluster.prepare(delay=0.3, ahead=2)
    first = cluster.start("r0.0", "a")
    until(lambda: published(cluster) >= 1, "a chunk")
    first.kill()
    first.wait()
    assert cluster.start("r0.1", "a").wait(120) == 0, cluster.log("r0.1")
    counted_once(cluster)
    own = Workdir(cluster.scratch("a")).run(RUN)
    came = [ranges for lot in lots(own, 1) for ranges in lot.ranges]
    assert sum(stop - start for start, stop in came) == len(LENGTHS)


def test_a_drained_replica_leaves_and_its_next_attempt_goes_on(cluster: Cluster) -> None:
    cluster.prepare(delay=0.1)
    first = cluster.start("r0.0", "a")
    until(lambda: published(cluster) >= 1, "a chunk")
    first.send_signal(signal.SIGUSR1)
    assert first.wait(120) == 0, cluster.log("r0.0")
    assert published(cluster) < 14
    assert cluster.start("r0.1", "b").wait(120) == 0, cluster.log("r0.1")
    counted_once(cluster)


def test_a_tied_replica_and_its_server_end_with_its_stdin(cluster: Cluster) -> None:
    cluster.prepare(delay=0.05)
    tied = cluster.start("r0.0", "a", tied=True)
    until(lambda: published(cluster) >= 1, "a chunk")
    (server,) = [one for one in psutil.process_iter() if is_standin_of(one, cluster)]
    assert tied.stdin is not None
    tied.stdin.close()
    assert tied.wait(30) == -signal.SIGKILL
    server.wait(30)
    assert cluster.start("r0.1", "a").wait(120) == 0, cluster.log("r0.1")
    counted_once(cluster)


def is_standin_of(process: psutil.Process, cluster: Cluster) -> bool:
    try:
        argv = process.cmdline()
        return (
            argv[1:2] != [] and argv[1].endswith("standin.py") and process.environ()[MARK].startswith(str(cluster.root))
        )
    except (psutil.Error, KeyError):
        return False


def test_a_node_that_does_not_see_the_folder_says_so(cluster: Cluster) -> None:
    assert cluster.start("r0.0", "a").wait(60) == 2
    assert "must be on a file system that the login host and the nodes share" in cluster.log("r0.0")


def test_a_chunk_waits_on_its_node_while_the_shared_folder_is_full(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two copies find no room; the chunk is published later, and nothing of the failed copies is left."""
    cluster.prepare()
    context = Context(Workdir(cluster.scratch("a")), Report(sys.stderr))
    failures = [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EDQUOT, "Disk quota exceeded")]
    copy = desk._copy

    def full(source: Path, target: Path) -> None:
        if failures:
            target.write_bytes(b"half")
            raise failures.pop()
        copy(source, target)

    monkeypatch.setattr(desk, "_copy", full)
    monkeypatch.setattr(verb, "_drain_on_signals", lambda *_: None)  # this process keeps its own handlers
    verb.replica(ReplicaRequest(folder=str(cluster.run.root), name="r0.0", scratch=str(cluster.scratch("a"))), context)
    assert not failures
    counted_once(cluster)
    assert not list((cluster.run.queue / "published").glob("*/.aside-*"))


def test_what_a_killed_replica_had_half_copied_goes_with_the_chunk_s_result(tmp_path: Path) -> None:
    killed, other = Queue(tmp_path, 1, "r0.0"), Queue(tmp_path, 1, "r1.0")
    (killed.results.aside(0) / "hs_0.safetensors").write_bytes(b"half")
    assert other.results.publish(0, other.results.aside(0))
    other.results.sweep(0)
    assert [entry.name for entry in other.results.path(0).parent.iterdir()] == ["0"]
