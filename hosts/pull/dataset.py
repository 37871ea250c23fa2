"""The dataset's own files beside the shards, and the destination's manifest: what a trainer loads is one folder.

Runs on the laptop, at the end of a pull.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from hosts.errors import UsageError
from hosts.plan.plan import Plan
from remote.files import make_directory, write_whole, written_aside
from remote.messages.transfer import DestinationManifest
from remote.transfer.destination import Destination

OURS = ("hidden_states", "roost")


def place_dataset(dataset: Path, destination: Destination) -> None:
    """Copy the dataset's files into the destination, each whole; refuse a destination that holds another dataset."""
    for source in sorted(path for path in dataset.rglob("*") if path.is_file()):
        relative = source.relative_to(dataset)
        if relative.parts[0] in OURS:
            continue
        target = destination.root / relative
        if target.exists() and target.stat().st_size == source.stat().st_size and _same(source, target):
            continue
        if target.exists() and relative.name == "manifest.json":
            raise UsageError(
                f"{destination.root} holds another dataset than {dataset}.",
                remedy="Pull into a folder of its own.",
            )
        make_directory(target.parent)
        with written_aside(target) as aside:
            shutil.copyfile(source, aside)


def write_manifest(destination: Destination, run: str, plan: Plan | None, records: int) -> DestinationManifest:
    """Say in `roost/manifest.json` what lies here, counted from the destination's ledger."""
    delivered, tokens, size = destination.ledger.totals()
    manifest = DestinationManifest(
        run=run,
        identity=plan.identity if plan else None,
        records=records,
        delivered=delivered,
        delivered_tokens=tokens,
        delivered_bytes=size,
        hosts=destination.ledger.by_host(),
        written_at=time.time(),
    )
    write_whole(destination.roost / "manifest.json", manifest.model_dump_json(indent=1).encode())
    return manifest


def _same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()
