"""A small destination made by hand: a dataset, its shards, a ledger and a manifest, as a pull leaves them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from safetensors.torch import load_file, save_file

from remote.context import Context
from remote.data.dataset import DatasetFolder
from remote.data.prepare import prepare
from remote.shared.codec.container import SUFFIX, pack_file
from remote.shared.messages.dataset import PrepareRequest
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.transfer import DeliveredRow, DestinationManifest
from remote.shared.shard.rowsums import NAME, RowSums, text
from remote.shared.shard.tensorfile import read_metadata
from remote.shared.transfer.ledger import DestinationLedger
from tests.identities import run_identity
from tests.remote.data.samples import chat, write_jsonl

HIDDEN = 8
BOUNDARIES = [1, 2, 3, 4]
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}


@dataclass(frozen=True)
class Destination:
    folder: Path
    identity: RunIdentity

    def shard(self, index: int) -> Path:
        return self.folder / "hidden_states" / f"hs_{index}.safetensors"

    def token_ids(self, index: int) -> torch.Tensor:
        return load_file(self.shard(index))["token_ids"]

    def rewrite(self, index: int, tensors: dict[str, torch.Tensor], *, summed: bool = False) -> None:
        """Replace a shard and put its new digest into the ledger: wrong content that digests cannot see.

        `summed`: with the row sums of these very rows; else with those that the shard has, if it has any.
        """
        metadata = self.identity.marks
        if summed:
            sums = RowSums(index, BOUNDARIES)
            sums.add(tensors["hidden_states"].view(torch.uint8).numpy())
            metadata = {**metadata, NAME: text(sums.totals)}
        elif self.shard(index).exists():
            metadata = read_metadata(self.shard(index))
        save_file(tensors, self.shard(index), metadata)
        enter(self.folder, index, self.shard(index), len(tensors["token_ids"]))


def make_destination(
    folder: Path, tokenizer: Path, context: Context, *, records: int = 6, dtype: str = "BF16", final: str = "pre"
) -> Destination:
    source = write_jsonl(
        folder.with_suffix(".jsonl"), [chat(f"question {i}", "answer " * (i + 1)) for i in range(records)]
    )
    request = PrepareRequest(inputs=[str(source)], out=str(folder), tokenizer=str(tokenizer))
    manifest = prepare(request, context).manifest
    identity = run_identity(
        name="r", dataset=manifest.digest, boundaries=BOUNDARIES, final=final, hidden_size=HIDDEN, dtype=dtype
    )
    (folder / "hidden_states").mkdir()
    (folder / "roost").mkdir()
    described = DestinationManifest(
        identity=identity,
        identity_digest=identity.digest,
        records=records,
        delivered=records,
        delivered_tokens=0,
        delivered_bytes=0,
        written_at=1.0,
    )
    (folder / "roost" / "manifest.json").write_text(described.model_dump_json())
    made = Destination(folder, identity)
    for record in DatasetFolder.open(folder).records([(0, records)]):
        generator = torch.Generator().manual_seed(record.index)
        states = torch.randn(len(record.input_ids), len(BOUNDARIES), HIDDEN, generator=generator).to(DTYPES[dtype])
        ids = torch.from_numpy(record.input_ids.astype("int64"))
        made.rewrite(record.index, {"token_ids": ids, "hidden_states": states}, summed=True)
    return made


def enter(folder: Path, index: int, shard: Path, rows: int) -> None:
    row = DeliveredRow(
        index=index,
        rows=rows,
        size_bytes=shard.stat().st_size,
        xxh3=xxhash.xxh3_128_hexdigest(shard.read_bytes()),
        disk_bytes=shard.stat().st_size,
        host="a",
        epoch=1,
        delivered_at=1.0,
    )
    with DestinationLedger(folder / "roost" / "ledger.sqlite") as ledger:
        ledger.record([row])


def compress(place: Destination, index: int) -> Path:
    """Keep a record as a container and say so in the ledger, as a compressed pull does."""
    container = place.shard(index).with_name(place.shard(index).name + SUFFIX)
    pack_file(place.shard(index), container)
    place.shard(index).unlink()
    with DestinationLedger(place.folder / "roost" / "ledger.sqlite") as ledger:
        row = ledger.find(index)
        assert row
        ledger.record([row.model_copy(update={"stored": "compressed", "disk_bytes": container.stat().st_size})])
    return container
