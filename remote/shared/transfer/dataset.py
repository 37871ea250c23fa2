"""The dataset's own files beside the shards: what a trainer loads is one folder.

Runs where the shards land, around a pull.
"""

from __future__ import annotations

from pathlib import Path

from remote.shared.transfer.destination import Destination

OURS = ("hidden_states", "answers", "roost")


def place_dataset(dataset: Path, destination: Destination) -> None:
    """Copy the dataset's files into an open destination, each whole; `manifest.refuse_other` has looked before."""
    for source in sorted(path for path in dataset.rglob("*") if path.is_file()):
        relative = source.relative_to(dataset)
        if relative.parts[0] not in OURS and not destination.equals(relative.as_posix(), source):
            destination.put(relative.as_posix(), source)


def gaps(present: list[int], records: int) -> list[tuple[int, int]]:
    """Ranges of [0, records) that are not among the rising `present`."""
    found, start = [], 0
    for index in [*present, records]:
        if index > start:
            found.append((start, index))
        start = index + 1
    return found
