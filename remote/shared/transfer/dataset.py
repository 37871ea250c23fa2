"""The dataset's own files beside the shards, and the destination's manifest: what a trainer loads is one folder.

Runs where the shards land, around a pull.
"""

from __future__ import annotations

import time
from pathlib import Path

from remote.shared.errors import UsageError
from remote.shared.messages.extract import Identity
from remote.shared.messages.transfer import DestinationManifest
from remote.shared.transfer.destination import Destination

OURS = ("hidden_states", "roost")
MANIFEST = "manifest.json"


def place_dataset(dataset: Path, destination: Destination) -> None:
    """Copy the dataset's files into the destination, each whole; refuse a destination that holds another dataset."""
    if not destination.equals(MANIFEST, dataset / MANIFEST) and destination.holds(MANIFEST):
        raise UsageError(
            f"{destination.name} holds another dataset than {dataset}.", remedy="Pull into a folder of its own."
        )
    for source in sorted(path for path in dataset.rglob("*") if path.is_file()):
        relative = source.relative_to(dataset)
        if relative.parts[0] not in OURS and not destination.equals(relative.as_posix(), source):
            destination.put(relative.as_posix(), source)


def write_manifest(destination: Destination, run: str, identity: Identity, records: int) -> DestinationManifest:
    """Say in `roost/manifest.json` what lies here, counted from the destination's ledger."""
    delivered, tokens, size = destination.ledger.totals()
    manifest = DestinationManifest(
        run=run,
        identity=identity,
        records=records,
        delivered=delivered,
        delivered_tokens=tokens,
        delivered_bytes=size,
        hosts=destination.ledger.by_host(),
        written_at=time.time(),
    )
    destination.put_bytes(f"roost/{MANIFEST}", manifest.model_dump_json(indent=1).encode())
    return manifest


def gaps(present: list[int], records: int) -> list[tuple[int, int]]:
    """Ranges of [0, records) that are not among the rising `present`."""
    found, start = [], 0
    for index in [*present, records]:
        if index > start:
            found.append((start, index))
        start = index + 1
    return found
