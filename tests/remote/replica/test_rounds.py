"""Records of a run on a cluster that are opened again: a new round, with a queue of its own, makes them alone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from remote.engines import verbs
from remote.shared.messages.extract import IndicesRequest, ReopenRequest
from remote.shared.messages.jobs import SlurmArray, SubmitRequest, SubmitResult
from remote.shared.messages.replica import ReplicaSpec
from remote.shared.paths import RunPaths
from remote.work.gathered import read_spec
from remote.work.ledger import Ledger, Row
from remote.work.verbs import reopen, requeue
from tests.remote.extract.conftest import identity
from tests.remote.extract.standin_process import until
from tests.remote.replica.conftest import Cluster
from tests.remote.replica.test_replica import counted_once

pytestmark = pytest.mark.processes


class Scheduler:
    """An engine that submits nothing; the test starts the replicas."""

    def __init__(self, paths: RunPaths) -> None:
        self._over = paths.over

    def text(self, order: SlurmArray, payload: Path) -> str:
        return str(self._over)

    def submit(self, order: SlurmArray, payload: Path) -> str:
        return "1"

    def earlier(self) -> list[str]:
        return []


@pytest.fixture(autouse=True)
def scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "ENGINES", {"slurm": Scheduler})


def submit(cluster: Cluster) -> SubmitResult:
    given = read_spec(cluster.run).model_dump() | {"round": 0, "records": []}  # as the laptop asks for it
    request = SubmitRequest(identity=identity(), spec=ReplicaSpec.model_validate(given), order=SlurmArray(nodes=1))
    return verbs.submit(request, cluster.login)


def work(cluster: Cluster, name: str, node: str) -> None:
    assert cluster.start(name, node).wait(120) == 0, cluster.log(name)


def test_queued_records_are_made_again_even_on_a_node_that_has_made_them_before(cluster: Cluster) -> None:
    cluster.prepare()
    work(cluster, "r0.0", "a")
    assert submit(cluster).over
    cluster.run.shard(3).write_bytes(b"damaged")
    request = IndicesRequest(identity=identity(), epoch=1, indices=[3, 17])
    assert requeue(request, cluster.login).records == 2
    submitted = submit(cluster)
    assert (submitted.job, submitted.over) == ("1", False)
    assert submitted.script == str(cluster.run.root / "queue.1" / "over")
    assert read_spec(cluster.run).records == [(3, 4), (17, 18)]
    work(cluster, "r0.1", "a")
    counted_once(cluster)
    assert submit(cluster).over
    assert requeue(IndicesRequest(identity=identity(), epoch=1, indices=[59]), cluster.login).records == 1
    submit(cluster)
    assert (read_spec(cluster.run).round, read_spec(cluster.run).records) == (2, [(59, 60)])
    work(cluster, "r0.2", "b")
    counted_once(cluster)


def test_an_attempt_of_an_earlier_round_publishes_nothing_in_the_new_one(cluster: Cluster) -> None:
    cluster.prepare(delay=0.05)
    late = cluster.start("r0.0", "a")
    until(lambda: any(cluster.run.queue.glob("claims/*/*")), "a claim")
    late.send_signal(signal.SIGSTOP)
    work(cluster, "r1.0", "b")
    requeue(IndicesRequest(identity=identity(), epoch=1, indices=list(range(60))), cluster.login)
    submit(cluster)
    late.send_signal(signal.SIGCONT)
    assert late.wait(120) == 0, cluster.log("r0.0")
    assert not (cluster.run.root / "queue.1").exists()
    work(cluster, "r1.1", "b")
    counted_once(cluster)


def test_quarantined_records_are_tried_again(cluster: Cluster) -> None:
    cluster.prepare()
    work(cluster, "r0.0", "a")
    assert submit(cluster).over
    cluster.run.shard(5).unlink()
    with Ledger(cluster.run.ledger) as ledger:
        ledger.record([Row(5, "quarantined", 8, 1, cause="it was refused")])
    assert submit(cluster).over
    told = reopen(ReopenRequest(identity=identity(), indices=[5, 6]), cluster.login)
    assert (told.records, told.causes) == (1, {"it was refused": 1})
    submit(cluster)
    assert read_spec(cluster.run).records == [(5, 6)]
    work(cluster, "r0.1", "a")
    counted_once(cluster)


def test_records_that_are_queued_while_replicas_work_are_made_after_them(cluster: Cluster) -> None:
    cluster.prepare()
    work(cluster, "r0.0", "a")
    assert not cluster.run.ledger.exists(), "the login host has not looked yet"
    assert requeue(IndicesRequest(identity=identity(), epoch=1, indices=[7]), cluster.login).records == 1
    assert submit(cluster).job == "1"
    work(cluster, "r0.1", "b")
    counted_once(cluster)
