"""Reads answered conversations from the files that `remote.answer.store` wrote, in the folder that they were pulled to.

Read-only, and the only reader of these files; called by `prepare`, `inspect` and `verify`. A file's content is not
trusted, so all of it is checked.
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
    "length": "an answer that was cut at the limit of tokens",
    "empty": "an answer without text",
    "repeating": "an answer that repeats itself",
    "refused": "a refusal",
}
"""The reason why a record is left out, by the record's mark."""


@dataclass(frozen=True)
class Answered:
    """One conversation."""

    rows: list[tuple[np.ndarray, np.ndarray]]
    """Ids int32 [L] and mask uint8 [L] of each training record."""
    account: Account


def read(shard: TensorFile) -> Answered:
    """Return the file's conversation; raises RecordError, which says what is wrong with the file."""
    try:
        offset, ids, mask = (shard.array(name) for name in ("offset", "input_ids", "loss_mask"))
        account = Account.model_validate_json(shard.array("account").tobytes())
    except KeyError as error:
        raise RecordError(f"it has no {error.args[0]}") from error
    except ValidationError as error:
        raise RecordError(f"its summary of the turns (`account`) cannot be read: {error.errors()[0]['msg']}") from error
    rising = len(offset) > 1 and offset[0] == 0 and bool((np.diff(offset) > 0).all())
    if not rising or offset[-1] != len(ids) or len(mask) != len(ids) or bool((mask > 1).any()):
        raise RecordError("its offsets, ids and mask do not fit together")
    edges = list(zip(offset[:-1].tolist(), offset[1:].tolist(), strict=True))
    return Answered([(ids[start:stop], mask[start:stop]) for start, stop in edges], account)


def identity_at(folder: Path) -> RunIdentity | None:
    """Return the run whose answers `folder` has; None if it has no pulled answers."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = manifest_of(Destination(folder))
    return manifest.identity if manifest is not None and manifest.identity.answers is not None else None


def delivered(folder: Path) -> list[tuple[int, str]]:
    """Return index and digest of each record that was pulled to a folder, in the order of the indices."""
    with DestinationLedger(folder / "roost" / "ledger.sqlite") as ledger:
        return sorted((row.index, row.xxh3) for row in ledger.rows())


def lines_of(folder: Path, identity: RunIdentity, target: Path) -> tuple[str, int]:
    """Write the folder's records as JSON lines that `prepare` reads; return their digest and bytes.

    A line has the ids and mask of a training record, or the reason why the conversation is left out. Raises UsageError
    if a file differs from the delivered file.
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
            raise RecordError("it changed after the pull: its digest is not the ledger's")
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
