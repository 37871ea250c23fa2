"""The verb `export`: writes a destination's records in a trainer's layout, on all cores; the originals stay.

Runs where the destination is. Writes `out`: the samples, each atomically, then side files and the card. A record that
exists is not written again, so an interrupted export continues.
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
import xxhash

from remote.context import Context
from remote.data import holdings
from remote.data.dataset import DatasetFolder
from remote.data.export import card as cards
from remote.data.export.layouts import TrainerLayout, Written, final_wanted, layout_for
from remote.data.export.norm import final_norm
from remote.data.holdings import Holdings
from remote.data.workers import cores, in_order
from remote.shared.errors import HostError, RecordError, UsageError
from remote.shared.files import make_directory, write_whole
from remote.shared.messages.export import ExportCard, ExportDtype, ExportRequest, ExportResult, Format, SlotError
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.server import FinalNorm
from remote.shared.shard.tensorfile import read_metadata

_BATCH = 16
"""Records of a task: enough that starting a task costs little, and few enough to keep all cores busy to the end."""
_MARKER = ".exporting"
_PRELOAD = ["remote.data.export.verb"]
_DATASET_FILES = ("*.arrow", "dataset_info.json", "state.json", "lengths.npy", "origins.npy", "manifest.json")


@dataclass(frozen=True)
class Job:
    """The settings that all worker processes share."""

    source: Path
    out: Path
    format: Format
    dtype: ExportDtype
    final: FinalNorm
    model: str
    """The norm, if it is to be applied."""
    identity: RunIdentity
    """The run that every shard must name in its metadata."""


def export(request: ExportRequest, context: Context) -> ExportResult:
    """Write the export; raises UsageError if it cannot be right (wrong norm state, missing records)."""
    begun = time.monotonic()
    source, out = Path(request.folder).expanduser().absolute(), Path(request.out).expanduser().absolute()
    place, dataset = holdings.of_destination(source), DatasetFolder.open(source)
    job = _job(request, place, source, out)
    missing = _refuse_incomplete(place, request)
    card = _card(job, place, dataset, missing)
    _begin(out, card)
    written = _write_all(job, place, request.processes or cores(), context)
    card = card.model_copy(update={"errors": _slot_errors(place, written)})
    _finish(job, card, dataset, [row.index for row in place.rows])
    return ExportResult(
        out=str(out),
        load=str(out / layout_for(job.format, job.dtype).folder),
        card=card,
        linked=sum(one.linked for one in written),
        written_bytes=sum(one.size_bytes for one in written if not one.linked),
        wall_seconds=time.monotonic() - begun,
    )


def _job(request: ExportRequest, place: Holdings, source: Path, out: Path) -> Job:
    if out == source or source in out.parents:
        raise UsageError(f"The export cannot be written into its own source {source}.", remedy="Choose another --out.")
    if place.identity.answers is not None:
        raise UsageError(
            f"{request.folder} has answers, but an export is made from hidden states.",
            remedy=f"Prepare the answers with inv prepare --input {request.folder}, and extract their states.",
        )
    if request.format == "specforge" and len(place.identity.boundaries) != 4:
        raise UsageError(
            f"SpecForge needs three auxiliary layers, but these shards have {len(place.identity.boundaries) - 1}."
        )
    held = place.identity.final
    final = final_wanted(layout_for(request.format, request.dtype), held, request.model)
    model = str(Path(request.model).expanduser()) if final != held else ""
    return Job(source, out, request.format, request.dtype, final, model, place.identity)


def _refuse_incomplete(place: Holdings, request: ExportRequest) -> int:
    missing = len(place.holes())
    if missing and not request.partial:
        raise UsageError(
            f"{missing} of {len(place.expected)} records are not in {request.folder}.",
            remedy="Pull the other records, or export without them with --partial.",
        )
    if not place.rows:
        raise UsageError(f"{request.folder} has no records.", remedy="Pull them first.")
    return missing


def _card(job: Job, place: Holdings, dataset: DatasetFolder, missing: int) -> ExportCard:
    content = xxhash.xxh3_128()
    for row in place.rows:
        content.update(f"{row.index} {row.xxh3}\n".encode())
    metadata = read_metadata(place.path(place.rows[0]))
    return ExportCard(
        format=job.format,
        dtype=job.dtype,
        records=len(place.rows),
        tokens=sum(row.rows for row in place.rows),
        dataset=dataset.manifest.digest,
        identity=place.identity,
        blocks=[boundary - 1 for boundary in place.identity.boundaries],
        final_state=job.final,
        norm=final_norm(Path(job.model), job.identity.hidden_size).digest() if job.model else "",
        versions={name: metadata[name] for name in ("sglang", "capture") if name in metadata},
        missing=missing,
        content=content.hexdigest(),
    )


def _begin(out: Path, card: ExportCard) -> None:
    """Make `out`, or continue the same export in it; raise UsageError if `out` is something else.

    `card` has no `errors` yet, which are known once all records are written.
    """
    marker, mine = out / _MARKER, card.model_dump_json().encode()
    if out.exists() and any(out.iterdir()):
        finished = out / cards.CARD
        before = marker if marker.is_file() else finished
        if not before.is_file() or _without_errors(before) != card:
            raise UsageError(
                f"{out} exists already, but does not hold this export.",
                remedy="Choose another --out, or remove this folder.",
            )
    make_directory(out)
    write_whole(marker, mine)


def _without_errors(path: Path) -> ExportCard:
    return ExportCard.model_validate_json(path.read_bytes()).model_copy(update={"errors": []})


def _slot_errors(place: Holdings, written: list[Written]) -> list[SlotError]:
    """Return the relative error of each slot over all tokens of all records; [] if the states are as extracted."""
    if not written[0].errors:
        return []
    weights = np.array([row.rows for row in place.rows], np.float64)
    errors = np.array([one.errors for one in written])  # [records, slots, (mean, worst)]
    means, worst = np.average(errors[..., 0], axis=0, weights=weights), errors[..., 1].max(axis=0)
    return [
        SlotError(boundary=boundary, mean=float(mean), worst=float(most))
        for boundary, mean, most in zip(place.identity.boundaries, means, worst, strict=True)
    ]


def _write_all(job: Job, place: Holdings, processes: int, context: Context) -> list[Written]:
    layout, rows = _layout(job), place.rows
    for folder in {layout.path(row.index).parent for row in rows}:
        make_directory(folder)
    shards = [(row.index, place.path(row)) for row in rows]
    tasks = [shards[start : start + _BATCH] for start in range(0, len(shards), _BATCH)]
    written: list[Written] = []
    workers = 1 if layout.links else min(processes, len(tasks))
    for part in in_order(partial(write_records, job), tasks, processes=workers, preload=_PRELOAD):
        written += part
        context.report.progress("exporting", len(written), len(rows), "records")
    return written


def write_records(job: Job, shards: list[tuple[int, Path]]) -> list[Written]:
    """Export some records, given as (index, shard). This is the task of worker processes."""
    if multiprocessing.parent_process() is not None:
        torch.set_num_threads(1)  # every other core has a process of its own
    return list(_written(job, shards))


def _written(job: Job, shards: list[tuple[int, Path]]) -> Iterator[Written]:
    layout, dataset = _layout(job), _dataset(job.source)
    for index, shard in shards:
        path = layout.path(index)
        _refuse_foreign(shard, index, job.identity)
        if path.exists():
            yield layout.found(path)
            continue
        try:
            yield layout.write(shard, index, dataset.record(index).loss_mask)
        except OSError as error:
            raise HostError(
                f"Record {index} could not be exported from {shard}: {error.strerror}.", remedy="Look with inv verify."
            ) from error


def _refuse_foreign(shard: Path, index: int, identity: RunIdentity) -> None:
    """Raise HostError if the shard's own metadata names another run than the destination's manifest."""
    try:
        foreign = identity.mismatch(read_metadata(shard))
    except RecordError as error:
        foreign = f"The file could not be read: {error.message}."
    if foreign:
        raise HostError(f"Record {index} could not be exported from {shard}. {foreign}", remedy="Look with inv verify.")


@lru_cache(maxsize=1)
def _layout(job: Job) -> TrainerLayout:
    norm = final_norm(Path(job.model), job.identity.hidden_size) if job.model else None
    return layout_for(job.format, job.dtype)(job.out, job.final, norm)


@lru_cache(maxsize=1)
def _dataset(source: Path) -> DatasetFolder:
    return DatasetFolder.open(source)


def _finish(job: Job, card: ExportCard, dataset: DatasetFolder, indices: list[int]) -> None:
    load = job.out / layout_for(job.format, job.dtype).folder
    if job.format == "speculators":
        for pattern in _DATASET_FILES:
            for file in job.source.glob(pattern):
                shutil.copyfile(file, job.out / file.name)
    if job.format == "speculators-v1":
        cards.write_v1_side_files(load, card, dataset, indices)
    if job.format in ("speculators", "speculators-v1"):
        cards.write_token_frequencies(dataset, job.out / "token_freq.pt")
    cards.write_card(job.out, load, card, dataset)
    (job.out / _MARKER).unlink()
