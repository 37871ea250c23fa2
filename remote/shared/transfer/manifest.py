"""A destination belongs to one run, which `roost/manifest.json` names before the first record is delivered.

Runs where the shards land, and wherever a destination is read (verify, export, repair). Code that delivers records
opens its destination with `opened_for` only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from pydantic import ValidationError

from remote.shared import foreign
from remote.shared.errors import UsageError
from remote.shared.messages.envelope import first_problem
from remote.shared.messages.run import RunIdentity, refuse_other_run
from remote.shared.messages.transfer import DestinationManifest
from remote.shared.transfer.destination import Destination
from remote.shared.words import counted

MANIFEST = "roost/manifest.json"
DATASET_MANIFEST = "manifest.json"
OWN_FOLDER = "Pull into a folder of its own."

D = TypeVar("D", bound=Destination)


def manifest_of(place: Destination) -> DestinationManifest | None:
    """Return the destination's manifest; None if nothing was ever pulled there. Reads only.

    Raises UsageError if there are shards without a manifest, or if the manifest cannot be read or was edited.
    """
    content = place.read(MANIFEST)
    if content is None:
        if place.holds_records():
            raise UsageError(
                f"{place.name} holds shards but does not say of which run: it has no {MANIFEST}.", remedy=OWN_FOLDER
            )
        return None
    try:
        manifest = DestinationManifest.model_validate_json(content)
    except ValidationError as error:
        raise UsageError(
            f"{place.name} has a {MANIFEST} that names no run ({first_problem(error)}): it was edited, or written by a "
            "Roost that knew no run identity.",
            remedy=OWN_FOLDER,
        ) from error
    if manifest.identity_digest != manifest.identity.digest:
        raise UsageError(
            f"The {MANIFEST} of {place.name} was edited: its identity has the digest {manifest.identity.digest}, and "
            f"{manifest.identity_digest} was written there.",
            remedy="Put the file back as it was, or pull into another folder.",
        )
    return manifest


def refuse_other(place: Destination, identity: RunIdentity) -> bool:
    """Raise UsageError if the destination holds anything but records of this run. Reads only.

    Returns whether this run was pulled there before.
    """
    manifest = manifest_of(place)
    if manifest is not None:
        refuse_other_run(place.name, manifest.identity, identity, OWN_FOLDER)
    dataset = place.read(DATASET_MANIFEST)
    if dataset is not None and (held := _digest_in(dataset)) != identity.dataset:
        raise UsageError(
            f"{place.name} holds the dataset {held}, and the run {identity.name!r} is of {identity.dataset}.",
            remedy=OWN_FOLDER,
        )
    return manifest is not None


def refuse_split(destination: Destination, run: str, elsewhere: list[tuple[int, int]]) -> None:
    """Raise UsageError if hosts have freed records that this destination lacks, so that another folder has them.

    Freeing the rest after delivering it here would leave the run in two folders, neither of them complete. Called
    before the destination is opened to deliver; an existing one is opened to look, and nothing is written elsewhere.
    """
    lacking = {index for start, stop in elsewhere for index in range(start, stop)}
    if lacking and manifest_of(destination) is not None:
        with destination:
            lacking.difference_update(destination.ledger.indices())
    if lacking:
        raise UsageError(
            f"--free is refused: {counted(len(lacking), 'record')} of the run {run!r} (the first is {min(lacking)}) "
            f"{'was' if len(lacking) == 1 else 'were'} freed on the hosts after a pull to another folder and cannot "
            f"come to {destination.name}, so that neither would have the whole run.",
            remedy="Pull to that other folder, or pull here without --free.",
        )


def _digest_in(manifest: bytes) -> str:
    """Return the digest in a dataset's own manifest."""
    try:
        return str(foreign.loads(manifest)["digest"])
    except (ValueError, LookupError, TypeError):
        return "without a digest"


@contextmanager
def opened_for(destination: D, identity: RunIdentity, records: int) -> Iterator[D]:
    """Open a destination to deliver records of this run, of a dataset of so many `records`.

    The manifest is written before the first record arrives, and again when the block ends. Raises UsageError, with
    nothing touched, if the destination is another run's; the second look is for a pull that began in between.
    """
    refuse_other(destination, identity)
    with destination:
        refuse_other(destination, identity)
        try:
            write_manifest(destination, identity, records)
            yield destination
        finally:
            write_manifest(destination, identity, records)


def write_manifest(destination: Destination, identity: RunIdentity, records: int) -> DestinationManifest:
    """Write `roost/manifest.json`, with the counts of the destination's ledger."""
    delivered, tokens, size = destination.ledger.totals()
    manifest = DestinationManifest(
        identity=identity,
        identity_digest=identity.digest,
        records=records,
        delivered=delivered,
        delivered_tokens=tokens,
        delivered_bytes=size,
        hosts=destination.ledger.by_host(),
        written_at=time.time(),
    )
    destination.put_bytes(MANIFEST, manifest.model_dump_json(indent=1).encode())
    return manifest
