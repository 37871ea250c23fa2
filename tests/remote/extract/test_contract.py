"""What the extractor relies on, asked of the stand-in and of real SGLang with capture alike; and a run on each."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
import psutil
import pytest
from safetensors import safe_open

from hosts.inventory.model import FlagValue
from hosts.inventory.servers import flag_arguments
from hosts.practice.ports import free_port
from hosts.practice.serving import CONTEXT_LENGTH, ENVIRONMENT, FLAGS, MAX_RUNNING_REQUESTS
from remote.context import Context
from remote.extract.dump import Expected
from remote.extract.prefill import prefill
from remote.extract.store import Stored, store
from remote.extract.watch import Found, Watch
from remote.parity.logprobs import ServerLogprobs
from remote.report import Report
from remote.servers.lifecycle import key, records
from remote.servers.lifecycle.ending import wait_until
from remote.servers.lifecycle.serve import serve
from remote.servers.lifecycle.stop import stop
from remote.shared.messages.extract import ExtractRequest, longest_record
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.server import CaptureSpec, ServeRequest, ServerSpec, ServerState, StopRequest
from remote.shared.paths import Workdir
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import register
from remote.work.client import Answer, Client
from remote.work.failures import RefusedError, ServerGoneError
from remote.work.launch import extract, run_here
from remote.work.ledger import Ledger
from remote.work.lock import is_locked
from tests.faults.checker import content_digest, examine, finished
from tests.remote.extract.conftest import RUN, identity, write_assignment
from tests.remote.extract.standin import Config
from tests.remote.extract.standin_process import PATIENCE_SECONDS, Pool


@dataclass(frozen=True)
class Served:
    """A server with capture, and what its records are."""

    workdir: Workdir
    state: ServerState
    identity: RunIdentity
    context_length: int
    vocabulary: int

    @property
    def dump_dir(self) -> Path:
        assert self.state.capture is not None
        return Path(self.state.capture.dump_dir)

    def tokens(self, length: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, self.vocabulary, length).astype(np.int32)


@pytest.fixture(scope="module")
def ramdisk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="roost-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", params=["stand-in", pytest.param("sglang", marks=pytest.mark.engine)])
def served(
    request: pytest.FixtureRequest, pool: Pool, tmp_path_factory: pytest.TempPathFactory, ramdisk: Path
) -> Iterator[Served]:
    """Each server in turn."""
    workdir = Workdir(tmp_path_factory.mktemp("a host"))
    if request.param == "stand-in":
        server = pool.take()
        server.configure(Config(str(workdir.root), str(ramdisk / "stand-in"), server.port))
        state = records.load(workdir.server("main"))
        assert state is not None
        yield Served(workdir, state, identity(), 4096, 1000)
        return
    model: Path = request.getfixturevalue("tiny_model_path")
    config = json.loads((model / "config.json").read_text())
    context = Context(workdir, Report(io.StringIO()), "tester@laptop")
    flags: dict[str, FlagValue] = {
        **FLAGS,
        "context-length": CONTEXT_LENGTH,
        "max-running-requests": MAX_RUNNING_REQUESTS,
    }
    spec = ServerSpec(
        model=str(model),
        port=free_port(),
        flags=flag_arguments(flags),
        env=ENVIRONMENT,
        capture=CaptureSpec(
            layers=[1, 3], dump_dir=str(ramdisk / "sglang"), high_water_bytes=64 << 20, pinned_bytes=16 << 20
        ),
        ready_timeout_seconds=240.0,
        restart=True,
    )
    state = serve(ServeRequest(servers=[spec]), context).servers[0]
    boundaries = [1, 3, config["num_hidden_layers"]]
    what = identity(boundaries=boundaries, hidden_size=config["hidden_size"], model=state.weights)
    yield Served(workdir, state, what, CONTEXT_LENGTH, 256)
    stop(StopRequest(grace_seconds=5.0), context)


def ask(served: Served, rid: str, tokens: np.ndarray, *, logprobs: bool = False) -> tuple[Answer, Found]:
    """One request of a registered session, and its dump."""
    request = RequestId.parse(rid)
    assert request is not None
    register(served.dump_dir, request.nonce)

    async def run() -> tuple[Answer, Found]:
        watch = Watch()
        looking = asyncio.create_task(watch.run())
        async with aiohttp.ClientSession() as http:
            client = Client(http, served.state.port, headers_of(served), 60.0)
            dump = watch.expect(served.dump_dir, rid)
            answer = await prefill(client, rid, tokens, logprobs=logprobs)
            found = await asyncio.wait_for(dump, 60.0)
        looking.cancel()
        return answer, found

    return asyncio.run(run())


def kept(served: Served, found: Found, rid: str, tokens: np.ndarray, shard: Path) -> Stored:
    """The dump through the collector's eyes."""
    assert served.state.capture is not None
    (dump,) = found.parts
    version = served.state.capture.version
    return store(dump, shard, Expected(rid, 5, tokens, served.identity, served.state.sglang, version))


def headers_of(served: Served) -> dict[str, str]:
    return key.headers(served.workdir.server(served.state.name))


def rid_of(rows: int, attempt: int = 1) -> str:
    return str(RequestId(uuid.uuid4().hex[:12], 5, attempt, rows))


@pytest.mark.parametrize("length", [1, 2, 63, 700, 3000])
def test_a_prefill_leaves_a_dump_that_passes_every_check(served: Served, tmp_path: Path, length: int) -> None:
    tokens, rid = served.tokens(length), rid_of(length)
    answer, found = ask(served, rid, tokens)
    assert "input_token_logprobs" not in answer.meta
    stored = kept(served, found, rid, tokens, tmp_path / "hs_5.safetensors")
    assert len(stored.mean_norm) == len(served.identity.boundaries)
    with safe_open(stored.path, "np") as opened:
        np.testing.assert_array_equal(opened.get_tensor("token_ids"), tokens)
        norms = np.linalg.norm(opened.get_tensor("hidden_states"), axis=2)
    np.testing.assert_allclose(stored.mean_norm, norms.mean(axis=0), rtol=1e-3)
    np.testing.assert_allclose(stored.max_norm, norms.max(axis=0), rtol=1e-3)


def test_logprobs_come_one_a_row_each_about_the_token_that_follows_it(served: Served) -> None:
    tokens = served.tokens(40)
    answer, _ = ask(served, rid_of(40), tokens, logprobs=True)
    found = ServerLogprobs.of_answer(answer.meta)
    assert found.next_ids[:39] == tokens.tolist()[1:]
    assert found.top_ids is not None
    assert {len(found.logprobs), len(found.next_ids), len(found.top_ids)} == {40}
    assert all(value <= 0 for value in found.logprobs)


def test_a_record_one_token_longer_than_the_context_admits_is_refused_for_good(served: Served) -> None:
    length = longest_record(served.context_length) + 1
    with pytest.raises(RefusedError, match=f"The server answered 400: .*{length} tokens"):
        ask(served, rid_of(length), served.tokens(length))


def test_the_longest_that_the_context_admits_is_taken(served: Served, tmp_path: Path) -> None:
    length = longest_record(served.context_length)
    tokens, rid = served.tokens(length), rid_of(length)
    _, found = ask(served, rid, tokens)
    assert kept(served, found, rid, tokens, tmp_path / "hs_5.safetensors").size_bytes > 0


@pytest.mark.parametrize("rid", ["somebody", "roost.forged.5.1.9", "roost.forged.canary.1.9"])
def test_a_request_that_is_no_registered_session_s_leaves_nothing(served: Served, rid: str) -> None:
    before = set(served.dump_dir.iterdir())

    async def run() -> Answer:
        async with aiohttp.ClientSession() as http:
            return await prefill(
                Client(http, served.state.port, headers_of(served), 60.0), rid, served.tokens(9), logprobs=False
            )

    asyncio.run(run())
    new = {path for path in served.dump_dir.iterdir() if not path.name.startswith(".")} - before
    assert new == set()


def test_aborting_an_unknown_request_is_harmless(served: Served) -> None:
    async def run() -> Answer:
        async with aiohttp.ClientSession() as http:
            client = Client(http, served.state.port, headers_of(served), 5.0)
            await client.abort(rid_of(9))
            return await prefill(client, rid_of(9), np.array([1, 2], np.int32), logprobs=False)

    assert asyncio.run(run()).meta["prompt_tokens"] == 2


def test_a_port_where_nobody_listens_is_a_server_that_is_gone() -> None:
    async def run() -> None:
        async with aiohttp.ClientSession() as http:
            await prefill(Client(http, free_port(), {}, 5.0), rid_of(2), np.array([1, 2], np.int32), logprobs=False)

    with pytest.raises(ServerGoneError):
        asyncio.run(run())


def test_a_run_of_many_lengths_is_complete(served: Served) -> None:
    lengths = [1, 700, 33, 2100, 5, 128, 64, 1999, 17, 300, 3500, 12]
    paths = served.workdir.run(RUN)
    rate = 0.0 if served.state.model == "standin" else 1.0
    write_assignment(
        paths.assignment(1),
        lengths,
        identity=served.identity,
        vocabulary=served.vocabulary,
        in_flight_tokens=8000,
        parity_rate=rate,
    )
    before = {path.name for path in served.dump_dir.iterdir()}  # a refused prompt of another test is given up later
    state = run_here(paths, Context(served.workdir, Report(io.StringIO())))
    assert (state.status, state.counts.done, state.counts.quarantined, state.retries) == ("complete", 12, 0, 0)
    assert state.parity_checked == (12 if rate else 0)
    with Ledger(paths.ledger) as ledger:
        assert {row.index: row.rows for _, row in ledger.shards()} == dict(enumerate(lengths))
    left = {path.name for path in served.dump_dir.iterdir()} - before
    assert [name for name in left if not name.startswith(".capture-")] == []


def test_a_killed_scheduler_and_a_killed_supervisor_cost_a_run_no_record(served: Served, tmp_path: Path) -> None:
    """Judged by the fault suite's checker, bit for bit: one request is in flight at a time."""
    if served.state.supervisor is None:
        pytest.skip("the stand-in has neither")
    context = Context(served.workdir, Report(io.StringIO()), "tester@laptop")
    lengths = [200 + index for index in range(30)]
    plain, struck = served.workdir.run("undisturbed"), served.workdir.run("struck")
    for paths in (plain, struck):
        write_assignment(
            paths.assignment(1),
            lengths,
            identity=served.identity.model_copy(update={"name": paths.root.name}),
            vocabulary=served.vocabulary,
            in_flight_tokens=1,
        )
    run_here(plain, context)
    truth = {index: content_digest(plain.shard(index)) for index in finished(plain.root)}

    extract(ExtractRequest(run=struck.root.name), context)
    assert wait_until(lambda: len(finished(struck.root)) >= 3, PATIENCE_SECONDS)
    kill_scheduler(served)
    assert wait_until(lambda: len(finished(struck.root)) >= 12, served.state.spec.ready_timeout_seconds)
    state = records.load(served.workdir.server("main"))
    assert state is not None
    assert (state.status, state.restarts) == ("ready", 1)
    assert state.supervisor is not None
    os.kill(state.supervisor.pid, signal.SIGKILL)
    assert is_locked(struck)
    assert wait_until(lambda: not is_locked(struck), PATIENCE_SECONDS)
    account = examine(tmp_path, {"here": struck.root}, truth)
    assert (account.faults, account.held, account.quarantined) == ([], set(range(30)), {})
    assert stop(StopRequest(grace_seconds=5.0), context).remaining == []
    assert [path.name for path in served.dump_dir.iterdir()] == [".roost"]


def kill_scheduler(served: Served) -> None:
    """SIGKILL, at once and from outside, as the kernel's out-of-memory killer would."""
    assert served.state.server is not None
    below = psutil.Process(served.state.server.pid).children(recursive=True)
    (scheduler,) = [process for process in below if process.name().startswith("sglang::sched")]
    scheduler.kill()
