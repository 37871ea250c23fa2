"""A run's shards compressed in place: the ledger is updated, bytes are equal, and damaged shards stay unchanged."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest
import xxhash

from remote.context import Context
from remote.report import Report
from remote.shared.codec.container import pack_file
from remote.shared.codec.reader import CompressedShard
from remote.shared.messages.codec import CompressRequest, CompressResult
from remote.shared.messages.envelope import Call
from remote.shared.messages.extract import Delivered, FreedRequest
from remote.shared.paths import RunPaths, Workdir
from remote.shared.supervised.pools import as_finished
from remote.shared.supervised.threads import Thread
from remote.storage import compress as compressing
from remote.storage.compress import adopt, compress, pack
from remote.work.ledger import Ledger, Row
from remote.work.session import reconcile
from remote.work.verbs import freed
from tests.conftest import CLONE
from tests.identities import run_identity
from tests.remote.codec.test_container import shard


def run_of(workdir: Path, records: int) -> tuple[Context, RunPaths, dict[int, bytes]]:
    context = Context(Workdir(workdir), Report())
    paths = context.workdir.run("trial")
    paths.shards.mkdir(parents=True)
    contents = {index: shard(paths.shard(index), 50 + index) for index in range(records)}
    with Ledger(paths.ledger) as ledger:
        ledger.note({"identity": run_identity().model_dump_json()})
        ledger.record(
            Row(index, "done", 1, 1, size_bytes=len(content), xxh3=xxhash.xxh3_128_hexdigest(content))
            for index, content in contents.items()
        )
    return context, paths, contents


def names(paths: RunPaths) -> list[str]:
    return sorted(path.name for path in paths.shards.iterdir())


def test_finished_shards_are_compressed_and_the_ledger_says_so(tmp_path: Path) -> None:
    context, paths, contents = run_of(tmp_path, 3)
    result = compress(CompressRequest(identity=run_identity(), processes=2), context)
    assert (result.compressed, result.failed) == (3, {})
    assert names(paths) == [f"hs_{index}.safetensors.rz" for index in range(3)]
    with Ledger(paths.ledger) as ledger:
        assert [row.stored for _, row in ledger.shards()] == ["compressed"] * 3
        reconcile(ledger, paths)
    assert len(names(paths)) == 3
    for index, content in contents.items():
        with CompressedShard(paths.shards / f"hs_{index}.safetensors.rz") as reader:
            assert reader.readall() == content
    assert compress(CompressRequest(identity=run_identity()), context).compressed == 0


def test_a_dry_run_counts_and_changes_nothing(tmp_path: Path) -> None:
    context, paths, contents = run_of(tmp_path, 2)
    result = compress(CompressRequest(identity=run_identity(), dry_run=True), context)
    assert (result.compressed, result.plain, result.plain_bytes) == (0, 2, sum(map(len, contents.values())))
    assert names(paths) == ["hs_0.safetensors", "hs_1.safetensors"]
    assert result.sampled == 2
    really = compress(CompressRequest(identity=run_identity()), context)
    assert result.ratio == pytest.approx(really.packed_bytes / really.plain_bytes)


def test_a_record_that_was_made_anew_meanwhile_keeps_its_own_shard(tmp_path: Path) -> None:
    _, paths, _ = run_of(tmp_path, 1)
    with Ledger(paths.ledger) as ledger:
        assert not ledger.mark_stored(0, "0" * 32, "compressed")
        assert [row.stored for _, row in ledger.shards()] == ["plain"]


def test_a_damaged_shard_stays_plain_and_is_reported(tmp_path: Path) -> None:
    context, paths, _ = run_of(tmp_path, 2)
    content = bytearray(paths.shard(0).read_bytes())
    content[-1] ^= 1
    paths.shard(0).write_bytes(content)
    result = compress(CompressRequest(identity=run_identity(), processes=1), context)
    assert list(result.failed) == [0]
    assert names(paths) == ["hs_0.safetensors", "hs_1.safetensors.rz"]


def test_a_compressed_shard_is_freed_like_a_plain_one_and_missed_when_it_is_gone(tmp_path: Path) -> None:
    context, paths, contents = run_of(tmp_path, 2)
    compress(CompressRequest(identity=run_identity(), processes=1), context)
    delivered = Delivered(index=0, xxh3=xxhash.xxh3_128_hexdigest(contents[0]))
    assert freed(FreedRequest(identity=run_identity(), records=[delivered]), context).freed_bytes > 0
    assert names(paths) == ["hs_1.safetensors.rz"]
    (paths.shards / "hs_1.safetensors.rz").unlink()
    with Ledger(paths.ledger) as ledger:
        reconcile(ledger, paths)
        assert [index for index, (state, _, _) in ledger.states().items() if state == "done"] == []


def node_s_view(paths: RunPaths, folder: Path) -> Context:
    """A working directory with the run's shards and a copy of its ledger, as a cluster's job has it."""
    context = Context(Workdir(folder), Report())
    own = context.workdir.run("trial")
    own.root.mkdir(parents=True)
    with Ledger(paths.ledger) as ledger:
        ledger.copy_to(own.ledger)
    own.shards.symlink_to(paths.shards)
    return context


def test_a_node_packs_and_only_the_login_host_changes_ledger_and_shards(tmp_path: Path) -> None:
    _, paths, contents = run_of(tmp_path / "shared", 3)
    content = bytearray(paths.shard(2).read_bytes())
    content[-1] ^= 1
    paths.shard(2).write_bytes(content)
    packed = pack(CompressRequest(identity=run_identity(), processes=1), node_s_view(paths, tmp_path / "node"))
    assert (packed.compressed, list(packed.failed)) == (0, [2])
    assert [name for name in names(paths) if name.endswith(".safetensors")] == [
        f"hs_{index}.safetensors" for index in contents
    ]
    with Ledger(paths.ledger) as ledger:
        assert [row.stored for _, row in ledger.shards()] == ["plain"] * 3
    result = adopt(paths, packed)
    assert (result.compressed, list(result.failed)) == (2, [2])
    assert names(paths) == ["hs_0.safetensors.rz", "hs_1.safetensors.rz", "hs_2.safetensors"]
    assert held(paths, {index: contents[index] for index in (0, 1)})
    assert adopt(paths, packed).compressed == 0


def test_a_container_of_other_bytes_or_of_a_freed_record_is_not_adopted(tmp_path: Path) -> None:
    context, paths, contents = run_of(tmp_path / "shared", 2)
    pack(CompressRequest(identity=run_identity(), processes=1), node_s_view(paths, tmp_path / "node"))
    (paths.shards / "hs_0.safetensors.rz").rename(tmp_path / "container")
    (paths.shards / "hs_1.safetensors.rz").rename(paths.shards / "hs_0.safetensors.rz")
    delivered = Delivered(index=1, xxh3=xxhash.xxh3_128_hexdigest(contents[1]))
    freed(FreedRequest(identity=run_identity(), records=[delivered]), context)
    (tmp_path / "container").rename(paths.shards / "hs_1.safetensors.rz")  # packed while its record was freed
    assert adopt(paths, CompressResult(compressed=0)).compressed == 0
    assert paths.shard(0).read_bytes() == contents[0]
    assert not (paths.shards / "hs_1.safetensors.rz").exists()
    with Ledger(paths.ledger) as ledger:
        assert [(row.index, row.stored) for _, row in ledger.shards()] == [(0, "plain")]


def held(paths: RunPaths, contents: dict[int, bytes]) -> bool:
    """Whether every record can be read as its ledger says."""
    with Ledger(paths.ledger) as ledger:
        forms = {row.index: row.stored for _, row in ledger.shards()}
    for index, content in contents.items():
        if forms[index] == "plain":
            assert paths.shard(index).read_bytes() == content
        else:
            with CompressedShard(paths.shards / f"hs_{index}.safetensors.rz") as reader:
                assert reader.readall() == content
    return True


def test_a_session_that_starts_before_the_ledger_names_the_container_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, paths, contents = run_of(tmp_path, 2)

    def sessions(jobs: Iterable[Future[int]]) -> Iterator[Future[int]]:
        for job in as_finished(jobs):
            with Ledger(paths.ledger) as ledger:
                reconcile(ledger, paths)
            yield job

    monkeypatch.setattr(compressing, "as_finished", sessions)
    result = compress(CompressRequest(identity=run_identity(), processes=1), context)
    assert (result.compressed, result.failed) == (2, {})
    assert held(paths, contents)


def test_sessions_that_start_during_compression_lose_nothing(tmp_path: Path) -> None:
    context, paths, contents = run_of(tmp_path, 12)
    over = threading.Event()

    def start_sessions() -> None:
        with Ledger(paths.ledger) as ledger:
            while not over.is_set():
                reconcile(ledger, paths)

    thread = Thread(start_sessions, "sessions")
    try:
        compress(CompressRequest(identity=run_identity(), processes=1), context)
    finally:
        over.set()
        thread.join()
    assert held(paths, contents)


def test_a_container_of_a_record_that_was_freed_meanwhile_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, paths, contents = run_of(tmp_path, 1)
    delivered = Delivered(index=0, xxh3=xxhash.xxh3_128_hexdigest(contents[0]))

    def free_first(jobs: Iterable[Future[int]]) -> Iterator[Future[int]]:
        for job in as_finished(jobs):
            with Ledger(paths.ledger) as ledger:
                ledger.free([(delivered.index, delivered.xxh3)])
            yield job

    monkeypatch.setattr(compressing, "as_finished", free_first)
    assert compress(CompressRequest(identity=run_identity(), processes=1), context).compressed == 0
    assert names(paths) == ["hs_0.safetensors"]


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["compress", "unpack"])
def test_a_cut_call_leaves_no_worker_behind(tmp_path: Path, verb: str) -> None:
    """The laptop is gone: nothing goes on whose output nobody records."""
    _, paths, _ = run_of(tmp_path, 1)
    content = shard(paths.shard(0), 60_000)
    for index in range(1, 40):
        paths.shard(index).hardlink_to(paths.shard(0))
    digest = xxhash.xxh3_128_hexdigest(content)
    with Ledger(paths.ledger) as ledger:
        ledger.note({"identity": run_identity().model_dump_json()})
        ledger.record(Row(index, "done", 1, 1, size_bytes=len(content), xxh3=digest) for index in range(40))
    request: dict[str, object] = {"identity": run_identity().model_dump(mode="json"), "processes": 2}
    if verb == "unpack":
        pack_file(paths.shard(0), tmp_path / "0.rz")
        for index in range(1, 40):
            (tmp_path / f"{index}.rz").hardlink_to(tmp_path / "0.rz")
        request = {"paths": [str(tmp_path)], "processes": 2}
    call = Call(verb=verb, request=request, workdir=str(tmp_path), tethered=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "remote", verb], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=CLONE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(call.model_dump_json().encode() + b"\n")
    process.stdin.flush()
    for line in process.stdout:
        if b'"progress"' in line:
            break
    family = psutil.Process(process.pid).children(recursive=True)
    process.stdin.close()
    assert process.wait(30) == 130
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
