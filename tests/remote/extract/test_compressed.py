"""`store: compressed`: a run whose shards are containers from the start, and everything else works on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from safetensors import safe_open

from remote.data.verify import verify
from remote.shared.codec.container import unpack_file
from remote.shared.messages.extract import Delivered, FreedRequest
from remote.shared.messages.verify import VerifyRequest
from remote.work.ledger import Ledger
from remote.work.verbs import freed
from tests.remote.extract.conftest import Host, identity, tokens_of
from tests.remote.extract.standin import states_of
from tests.remote.extract.standin_process import StandInProcess

LENGTHS = [5, 400, 1, 64]


@pytest.fixture
def server(host: Host) -> StandInProcess:
    """A server of bf16 states, and a run that keeps them compressed, extracted."""
    server = host.serve(dtype="BF16")
    host.assign(LENGTHS, identity=identity(dtype="BF16"), store="compressed")
    assert host.extract().counts.done == len(LENGTHS)
    return server


def names(host: Host) -> list[str]:
    return sorted(path.name for path in host.paths.shards.iterdir())


def test_only_containers_stay_and_their_plain_bytes_have_the_ledgers_digest(
    host: Host, server: StandInProcess, tmp_path: Path
) -> None:
    assert names(host) == [f"hs_{index}.safetensors.rz" for index in range(len(LENGTHS))]
    assert host.dumps() == []
    with Ledger(host.paths.ledger) as ledger:
        rows = [row for _, row in ledger.shards()]
    for row in rows:
        plain = tmp_path / f"{row.index}.safetensors"
        unpack_file(host.paths.shards / f"hs_{row.index}.safetensors.rz", plain)
        content = plain.read_bytes()
        assert (row.stored, row.size_bytes) == ("compressed", len(content))
        assert row.xxh3 == xxhash.xxh3_128_hexdigest(content)
        tokens = tokens_of(row.index, LENGTHS[row.index])
        with safe_open(plain, "pt") as opened:
            states = opened.get_tensor("hidden_states").view(torch.uint16).numpy()
        np.testing.assert_array_equal(states, states_of(tokens.tolist(), server.config))
    large = host.paths.shards / "hs_1.safetensors.rz"
    assert large.stat().st_size < 0.9 * rows[[row.index for row in rows].index(1)].size_bytes


def test_a_run_of_containers_is_verified_resumed_and_freed_like_any_other(host: Host, server: StandInProcess) -> None:
    before = names(host)
    (host.paths.shards / "hs_0.safetensors").write_bytes(b"a plain shard whose removal was interrupted")
    (host.paths.shards / "hs_2.safetensors.rz").unlink()
    assert host.extract().counts.done == len(LENGTHS)
    assert names(host) == before
    assert {index: count for index, count in server.seen().items() if count > 1} == {"2": 2}
    assert verify(VerifyRequest(run=identity(dtype="BF16")), host.context).faults == 0
    with Ledger(host.paths.ledger) as ledger:
        records = [Delivered(index=row.index, xxh3=row.xxh3) for _, row in ledger.shards()]
    assert freed(FreedRequest(identity=identity(dtype="BF16"), records=records), host.context).records == len(LENGTHS)
    assert names(host) == []


def test_a_damaged_container_is_named_by_verify(host: Host, server: StandInProcess) -> None:
    path = host.paths.shards / "hs_1.safetensors.rz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    result = verify(VerifyRequest(run=identity(dtype="BF16")), host.context)
    assert (result.faults, result.requeue) == (1, [(1, 2)])
