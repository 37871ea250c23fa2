"""The secrets of a cluster's servers: in one file that only the run's user reads, and only while the run needs it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from remote.context import Context
from remote.engines import verbs
from remote.replica import verb
from remote.report import Report
from remote.servers.lifecycle import serve as serving
from remote.shared.errors import HostError
from remote.shared.messages.jobs import CancelRequest, JobRow, SlurmArray, SubmitRequest
from remote.shared.messages.replica import ReplicaRequest, ReplicaSpec
from remote.shared.messages.server import ServeRequest, ServerSpec
from remote.shared.paths import RunPaths, Workdir
from tests.remote.extract.conftest import RUN, identity, write_assignment

VALUE = "hf_value-of-a-secret"


class Scheduler:
    """An engine that submits nothing and shows its script."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    def text(self, order: SlurmArray, payload: Path) -> str:
        return f"cd {payload}"

    def submit(self, order: SlurmArray, payload: Path) -> str:
        return "1"

    def earlier(self) -> list[str]:
        return []

    def rows(self) -> list[JobRow]:
        return []

    def cancel(self, *, dry_run: bool) -> list[str]:
        return ["1"]


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A login host that has submitted a run whose server has a secret."""
    monkeypatch.setattr(verbs, "ENGINES", {"slurm": Scheduler})
    context = Context(Workdir(tmp_path / "shared"), Report())
    write_assignment(context.workdir.run(RUN).assignment(1), [8, 9], host="cluster", in_flight_tokens=200)
    server = ServerSpec(model="/model", env={"HF_TOKEN": VALUE, "OMP_NUM_THREADS": "1"}, secrets=["HF_TOKEN"])
    spec = ReplicaSpec(epoch=1, chunk_tokens=100, servers=[server])
    told = verbs.submit(SubmitRequest(identity=identity(), spec=spec, order=SlurmArray(nodes=1)), context)
    assert VALUE not in told.model_dump_json()
    return context


def request(login: Context, scratch: Path) -> ReplicaRequest:
    return ReplicaRequest(folder=str(login.workdir.run(RUN).root), name="r0.0", scratch=str(scratch))


def served(login: Context, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of the server that a replica would start."""
    asked: list[ServeRequest] = []

    def serve(given: ServeRequest, context: Context) -> None:
        asked.append(given)
        raise HostError("the test starts no server")

    monkeypatch.setattr(serving, "serve", serve)
    with pytest.raises(HostError, match="the test starts no server"):
        verb.replica(request(login, scratch), Context(Workdir(scratch), Report()))
    return asked[0].servers[0].env


def test_secrets_are_in_one_file_of_the_run_s_user_and_reach_the_server(
    login: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = login.workdir.run(RUN)
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
    assert holding == [run.secrets]
    assert stat.S_IMODE(run.secrets.stat().st_mode) == 0o600
    assert served(login, tmp_path / "node", monkeypatch) == {"HF_TOKEN": VALUE, "OMP_NUM_THREADS": "1"}
    assert not [
        path for path in (tmp_path / "node").rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()
    ]


def test_cancelling_the_run_removes_its_secrets_and_a_dry_run_does_not(login: Context, tmp_path: Path) -> None:
    run = login.workdir.run(RUN)
    verbs.cancel(CancelRequest(identity=identity(), dry_run=True), login)
    assert run.secrets.exists()
    verbs.cancel(CancelRequest(identity=identity()), login)
    assert not run.secrets.exists()
    with pytest.raises(HostError, match="secrets of the run's servers are not in"):
        verb.replica(request(login, tmp_path / "node"), Context(Workdir(tmp_path / "node"), Report()))


def test_the_replica_that_finds_the_run_over_removes_its_secrets(login: Context, tmp_path: Path) -> None:
    run = login.workdir.run(RUN)
    (run.queue / "published" / "0" / "0").mkdir(parents=True)
    assert verb.replica(request(login, tmp_path / "node"), Context(Workdir(tmp_path / "node"), Report())).over
    assert run.over.exists()
    assert not run.secrets.exists()
