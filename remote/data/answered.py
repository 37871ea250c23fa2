"""Answered conversations as files, wherever they were pulled to: the only reader of what `remote.answer.store` writes.

Read-only; called by `prepare`, `inspect` and `verify`. A file may come from anybody, so all of it is checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from pydantic import ValidationError

from remote.shared.errors import RecordError, UsageError
from remote.shared.files import written_aside
from remote.shared.messages.answers import Account
from remote.shared.messages.run import RunIdentity
from remote.shared.paths import shard_name
from remote.shared.shard.tensorfile import TensorFile
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.ledger import DestinationLedger
from remote.shared.transfer.manifest import MANIFEST, manifest_of

DROPPED = {
    "length": "an answer that was cut at the most tokens",
    "empty": "an answer without text",
    "repeating": "an answer that runs in a circle",
    "refused": "a refusal",
}
"""Why a record is left out, by its mark."""


@dataclass(frozen=True)
class Answered:
    """One conversation."""

    rows: list[tuple[np.ndarray, np.ndarray]]
    """Ids int32 [L] and mask uint8 [L] of each training record."""
    account: Account


def read(shard: TensorFile) -> Answered:
    """Take a file apart; raises RecordError with what is wrong with it."""
    try:
        offset, ids, mask = (shard.array(name) for name in ("offset", "input_ids", "loss_mask"))
        account = Account.model_validate_json(shard.array("account").tobytes())
    except KeyError as error:
        raise RecordError(f"it has no {error.args[0]}") from error
    except ValidationError as error:
        raise RecordError(f"its account cannot be read: {error.errors()[0]['msg']}") from error
    rising = len(offset) > 1 and offset[0] == 0 and bool((np.diff(offset) > 0).all())
    if not rising or offset[-1] != len(ids) or len(mask) != len(ids) or bool((mask > 1).any()):
        raise RecordError("its offsets, ids and mask do not fit together")
    edges = list(zip(offset[:-1].tolist(), offset[1:].tolist(), strict=True))
    return Answered([(ids[start:stop], mask[start:stop]) for start, stop in edges], account)


def identity_at(folder: Path) -> RunIdentity | None:
    """The run whose answers a folder holds; None if it is no such folder."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = manifest_of(Destination(folder))
    return manifest.identity if manifest is not None and manifest.identity.answers is not None else None


def delivered(folder: Path) -> list[tuple[int, str]]:
    """Index and digest of each record that was pulled to a folder, in the order of the indices."""
    with DestinationLedger(folder / "roost" / "ledger.sqlite") as ledger:
        return sorted((row.index, row.xxh3) for row in ledger.rows())


def lines_of(folder: Path, identity: RunIdentity, target: Path) -> tuple[str, int]:
    """Write the folder's records as JSON lines that `prepare` reads; return their digest and bytes.

    A line is a training record as ids and mask, or says why the conversation is left out. Raises UsageError if a file
    is not the one that was delivered.
    """
    digest, size = xxhash.xxh3_128(), 0
    with written_aside(target, durable=False) as aside, aside.open("wb") as out:
        for index, xxh3 in delivered(folder):
            path = folder / identity.folder / shard_name(index)
            digest.update(xxh3.encode())
            for line in _lines(path, xxh3):
                size += out.write(line + b"\n")
    return digest.hexdigest(), size


def _lines(path: Path, xxh3: str) -> Iterator[bytes]:
    try:
        shard = TensorFile.open(path)
        if xxhash.xxh3_128_hexdigest(shard.content) != xxh3:
            raise RecordError("it is not the file that was delivered: its digest differs")
        found = read(shard)
    except RecordError as error:
        raise UsageError(
            f"{path} cannot be prepared: {error.message}.", remedy="Pull the file again with inv pull --check."
        ) from error
    if found.account.summary.dropped is not None:
        left = {"left_out": DROPPED[found.account.summary.dropped]}
        yield json.dumps(left).encode()
        return
    for ids, mask in found.rows:
        yield json.dumps({"input_ids": ids.tolist(), "loss_mask": mask.tolist()}, separators=(",", ":")).encode()
