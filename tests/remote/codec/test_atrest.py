"""A run's shards compressed in place: the ledger knows, the bytes are the same, and what is damaged stays as it was."""

from __future__ import annotations

from pathlib import Path

import xxhash

from remote.context import Context
from remote.extract.ledger import Ledger, Row
from remote.extract.session import reconcile
from remote.extract.verbs import freed
from remote.report import Report
from remote.shared.codec.reader import CompressedShard
from remote.shared.messages.codec import CompressRequest
from remote.shared.messages.extract import Delivered, FreedRequest
from remote.shared.paths import RunPaths, Workdir
from remote.storage.compress import compress
from tests.remote.codec.test_container import shard


def run_of(workdir: Path, records: int) -> tuple[Context, RunPaths, dict[int, bytes]]:
    context = Context(Workdir(workdir), Report())
    paths = context.workdir.run("trial")
    paths.shards.mkdir(parents=True)
    contents = {index: shard(paths.shard(index), 50 + index) for index in range(records)}
    with Ledger(paths.ledger) as ledger:
        ledger.record(
            Row(index, "done", 1, 1, size_bytes=len(content), xxh3=xxhash.xxh3_128_hexdigest(content))
            for index, content in contents.items()
        )
    return context, paths, contents


def names(paths: RunPaths) -> list[str]:
    return sorted(path.name for path in paths.shards.iterdir())


def test_finished_shards_are_compressed_and_the_ledger_says_so(tmp_path: Path) -> None:
    context, paths, contents = run_of(tmp_path, 3)
    result = compress(CompressRequest(run="trial", processes=2), context)
    assert (result.compressed, result.failed) == (3, {})
    assert names(paths) == [f"hs_{index}.safetensors.rz" for index in range(3)]
    with Ledger(paths.ledger) as ledger:
        assert [row.stored for _, row in ledger.shards()] == ["compressed"] * 3
        reconcile(ledger, paths)
    assert len(names(paths)) == 3
    for index, content in contents.items():
        with CompressedShard(paths.shards / f"hs_{index}.safetensors.rz") as reader:
            assert reader.readall() == content
    assert compress(CompressRequest(run="trial"), context).compressed == 0


def test_a_dry_run_counts_and_changes_nothing(tmp_path: Path) -> None:
    context, paths, contents = run_of(tmp_path, 2)
    result = compress(CompressRequest(run="trial", dry_run=True), context)
    assert (result.compressed, result.plain, result.plain_bytes) == (0, 2, sum(map(len, contents.values())))
    assert names(paths) == ["hs_0.safetensors", "hs_1.safetensors"]


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
    result = compress(CompressRequest(run="trial", processes=1), context)
    assert list(result.failed) == [0]
    assert names(paths) == ["hs_0.safetensors", "hs_1.safetensors.rz"]


def test_a_compressed_shard_is_freed_like_a_plain_one_and_missed_when_it_is_gone(tmp_path: Path) -> None:
    context, paths, contents = run_of(tmp_path, 2)
    compress(CompressRequest(run="trial", processes=1), context)
    delivered = Delivered(index=0, xxh3=xxhash.xxh3_128_hexdigest(contents[0]))
    assert freed(FreedRequest(run="trial", records=[delivered]), context).freed_bytes > 0
    assert names(paths) == ["hs_1.safetensors.rz"]
    (paths.shards / "hs_1.safetensors.rz").unlink()
    with Ledger(paths.ledger) as ledger:
        reconcile(ledger, paths)
        assert [index for index, (state, _, _) in ledger.states().items() if state == "done"] == []
