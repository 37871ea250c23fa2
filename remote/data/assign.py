"""The verb `assign`: writes a plan's shares as assignment folders, ready to be pushed to their hosts.

Runs where the dataset is (`local`). Writes each share's `tokens.safetensors`, for prompts the rest of their
conversations, and last `assignment.json`, each atomically. Streams from the mapped dataset, so the size of a share does
not matter for memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from remote.context import Context
from remote.data.dataset import DatasetFolder
from remote.shared.errors import UsageError
from remote.shared.files import make_directory, write_whole, written_aside
from remote.shared.messages.dataset import AssignRequest, AssignResult, HostShare, Ranges
from remote.shared.messages.extract import Assignment
from remote.shared.paths import ASSIGNMENT_FILE, CONVERSATIONS_FILE, TOKENS_FILE
from remote.shared.shard import header
from remote.shared.shard.header import TensorSpec


def assign(request: AssignRequest, context: Context) -> AssignResult:
    """Write every share of `request`; raises UsageError if a share does not fit the dataset."""
    dataset = DatasetFolder.open(request.dataset)
    written: list[Assignment] = []
    sizes: list[int] = []
    for number, share in enumerate(request.shares):
        _check(dataset, share)
        assignment, size = _write(dataset, share)
        written.append(assignment)
        sizes.append(size)
        context.report.progress("writing assignments", number + 1, len(request.shares), "hosts")
    return AssignResult(assignments=written, size_bytes=sizes)


def _check(dataset: DatasetFolder, share: HostShare) -> None:
    manifest, host = dataset.manifest, share.assignment.host
    if share.assignment.identity.dataset != manifest.digest:
        raise UsageError(
            f"The plan for {host} was made for dataset {share.assignment.identity.dataset}, "
            f"but the dataset in {dataset.root} is {manifest.digest}.",
            remedy="Make a new plan with inv plan.",
        )
    if not share.ranges:
        raise UsageError(f"The plan gives {host} no records.")
    if share.ranges[-1][1] > manifest.records:
        raise UsageError(
            f"The plan for {host} has record {share.ranges[-1][1] - 1}, but the dataset ends at {manifest.records - 1}."
        )


def _write(dataset: DatasetFolder, share: HostShare) -> tuple[Assignment, int]:
    folder = make_directory(Path(share.folder).expanduser())
    lengths = np.concatenate([dataset.lengths[start:stop] for start, stop in share.ranges])
    tokens = int(lengths.sum(dtype=np.int64))
    with written_aside(folder / TOKENS_FILE) as aside, aside.open("wb") as out:
        _write_tokens(out, dataset, share.ranges, lengths)
        size = out.tell()
    if dataset.manifest.kind == "prompts":
        with written_aside(folder / CONVERSATIONS_FILE) as aside, aside.open("wb") as out:
            for conversation in dataset.conversations(share.ranges):
                out.write(conversation.encode() + b"\n")
    counted = {
        "ranges": share.ranges,
        "records": len(lengths),
        "tokens": tokens,
        "vocab_size": dataset.manifest.vocab_size,
        "expected_tokens": _expected(dataset, share.ranges),
    }
    assignment = share.assignment.model_copy(update=counted)
    write_whole(folder / ASSIGNMENT_FILE, assignment.model_dump_json(indent=1).encode())
    return assignment, size


def _expected(dataset: DatasetFolder, ranges: Ranges) -> int:
    if dataset.manifest.kind != "prompts":
        return 0
    return sum(int(dataset.expected[start:stop].sum(dtype=np.int64)) for start, stop in ranges)


def _write_tokens(out: BinaryIO, dataset: DatasetFolder, ranges: Ranges, lengths: np.ndarray) -> None:
    records, tokens = len(lengths), int(lengths.sum(dtype=np.int64))
    expected = [TensorSpec("expected", "I32", (records,))] if dataset.manifest.kind == "prompts" else []
    out.write(
        header.write(
            [
                TensorSpec("index", "I64", (records,)),
                TensorSpec("offset", "I64", (records + 1,)),
                TensorSpec("token_ids", "I32", (tokens,)),
                *expected,
            ]
        )
    )
    for start, stop in ranges:
        out.write(np.arange(start, stop, dtype="<i8").tobytes())
    out.write(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype("<i8").tobytes())
    for piece in dataset.tokens(ranges):
        out.write(np.ascontiguousarray(piece, "<i4").data)
    for start, stop in ranges if expected else ():
        out.write(np.ascontiguousarray(dataset.expected[start:stop], "<i4").data)
