"""Single steps of `benchmarks/million.py`, each in a separate process so that its memory can be measured."""

from __future__ import annotations

import io
import random
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from hosts.plan.lengths import read_lengths, read_manifest
from hosts.plan.plan import Plan, make_plan, replan, save
from remote.context import Context
from remote.report import Report
from remote.shared import ranges as sets
from remote.shared.messages.dataset import AssignRequest, HostShare, Manifest
from remote.shared.messages.extract import Assignment
from remote.shared.messages.run import RunIdentity
from remote.shared.paths import Workdir

HOSTS = 64


def fabricate(dataset: str, records: str, tokens: str) -> None:
    """Write a dataset of random ids, with lengths spread like chat data's."""
    import numpy as np
    import pyarrow as pa

    from remote.data.dataset import SCHEMA, batch_of, finish, shard_filename

    folder = Path(dataset)
    folder.mkdir()
    chance = np.random.default_rng(0)
    spread = chance.lognormal(0, 0.8, int(records)) * int(tokens) * 0.73
    lengths = np.clip(spread, 8, 20 * int(tokens)).astype(np.int32)
    with pa.OSFile(str(folder / shard_filename(0, 1)), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
        for start in range(0, len(lengths), 2000):
            ids = [chance.integers(0, 500, length, np.int32) for length in lengths[start : start + 2000].tolist()]
            writer.write_batch(batch_of([(row, np.ones(len(row), np.int8)) for row in ids]))
    manifest = Manifest(
        digest="0" * 32,
        records=len(lengths),
        tokens=int(lengths.sum(dtype=np.int64)),
        loss_tokens=0,
        max_tokens=int(lengths.max()),
        sources=[],
        drops=[],
        tokenizer="t",
        tokenizer_path="/t",
        template="",
        mask={},
        seed=0,
        max_len=None,
        vocab_size=512,
    )
    finish(folder, 1, lengths, np.zeros((len(lengths), 2), np.int64), manifest)


def plan(dataset: str) -> Plan:
    folder = Path(dataset)
    manifest = read_manifest(folder)
    weights = {f"host{number}": 1.0 + number % 3 for number in range(HOSTS)}
    made = make_plan(dataset, _identity(manifest.digest), read_lengths(folder, manifest), weights)
    save(made, folder.parent / "plan.json")
    return made


def replan_(dataset: str) -> None:
    """Plan again after three hosts were lost and the other hosts did half of their records, in random places."""
    made = plan(dataset)
    chance = random.Random(0)
    folder = Path(dataset)
    done = {
        share.host: sets.from_indices(i for i in sets.indices(share.ranges) if chance.random() < 0.5)
        for share in made.shares[3:]
    }
    weights = {share.host: share.weight for share in made.shares[3:]}
    save(replan(made, read_lengths(folder, read_manifest(folder)), weights, done), folder.parent / "plan2.json")


def assign(dataset: str, given: str) -> None:
    from remote.data.assign import assign as run

    manifest = read_manifest(Path(dataset))
    assignment = Assignment(
        identity=_identity(manifest.digest),
        host="host0",
        epoch=1,
        ranges=[],
        records=0,
        tokens=0,
        vocab_size=0,
        context_length=1 << 20,
    )
    share = HostShare(assignment=assignment, ranges=[(0, manifest.records)], folder=given)
    context = Context(Workdir(Path(given).parent), Report(io.StringIO()))
    run(AssignRequest(dataset=dataset, shares=[share]), context)


def ledger(dataset: str, path: str) -> None:
    """Write a ledger in which every second record is done."""
    from remote.work.ledger import Ledger, Row

    lengths = read_lengths(Path(dataset), read_manifest(Path(dataset)))
    rows = (
        Row(
            index,
            "done",
            lengths[index],
            1,
            lengths[index] * 57_352,
            f"{index:032x}",
            mean_norm=[1.0] * 4,
            max_norm=[2.0] * 4,
        )
        for index in range(0, len(lengths), 2)
    )
    with Ledger(Path(path)) as opened:
        while batch := list(islice(rows, 500)):
            opened.record(batch)


def counts(path: str) -> None:
    from remote.work.ledger import Ledger

    with Ledger(Path(path)) as opened:
        print(opened.counts(), opened.causes(), opened.flagged())


def scan(given: str, path: str) -> None:
    from remote.work import assignment
    from remote.work.ledger import Ledger

    work = assignment.load(Path(given))
    with Ledger(Path(path)) as opened:
        states = opened.states()
    print(sum(index not in states for index in work.index.tolist()))


def _identity(dataset: str) -> RunIdentity:
    return RunIdentity(
        name="million",
        nonce="0" * 16,
        dataset=dataset,
        tokenizer="t",
        model="m",
        model_path="/m",
        boundaries=(3, 31, 59, 61),
        final="pre",
        hidden_size=7168,
        dtype="BF16",
    )


STEPS: dict[str, Callable[..., object]] = {
    "fabricate": fabricate,
    "plan": plan,
    "replan": replan_,
    "assign": assign,
    "ledger": ledger,
    "counts": counts,
    "scan": scan,
}

if __name__ == "__main__":
    begun = time.monotonic()
    STEPS[sys.argv[1]](*sys.argv[2:])
    print(f"{time.monotonic() - begun:.2f} s")
