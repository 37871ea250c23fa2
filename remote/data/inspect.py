"""The verb `inspect`: shows records of a dataset as a trainer sees them, in pieces with the same loss mask.

Runs where the dataset and its tokenizer are; read-only. The laptop colours the pieces.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from remote.context import Context
from remote.data.answered import identity_at, read
from remote.data.dataset import DatasetFolder, Record
from remote.data.tokenizer import ModelTokenizer, TokenizerSpec, load
from remote.shared.errors import UsageError
from remote.shared.messages.answers import Account
from remote.shared.messages.dataset import InspectedRecord, InspectRequest, InspectResult, Piece
from remote.shared.paths import shard_name
from remote.shared.shard.tensorfile import TensorFile


def inspect(request: InspectRequest, context: Context) -> InspectResult:
    """Stream each record of `request` as an item; the manifest is the result."""
    dataset = DatasetFolder.open(request.dataset)
    if request.indices:
        tokenizer = _tokenizer_of(dataset, request)
        for index in request.indices:
            context.report.item(_inspected(dataset, tokenizer, index))
    return InspectResult(manifest=dataset.manifest)


def _tokenizer_of(dataset: DatasetFolder, request: InspectRequest) -> ModelTokenizer | None:
    """Return the tokenizer that made the dataset; None if its records were tokenized already."""
    if not dataset.manifest.tokenizer and not request.tokenizer:
        return None
    path = request.tokenizer or dataset.manifest.tokenizer_path
    tokenizer = load(TokenizerSpec(path, request.trust_remote_code))
    if dataset.manifest.tokenizer and tokenizer.digest != dataset.manifest.tokenizer:
        # With another vocabulary the ids would be shown as another text.
        raise UsageError(
            f"The tokenizer at {tokenizer.path} is not the one that made this dataset.",
            remedy="Name the tokenizer of the dataset with --tokenizer.",
        )
    return tokenizer


def _inspected(dataset: DatasetFolder, tokenizer: ModelTokenizer | None, index: int) -> InspectedRecord:
    record = dataset.record(index)
    if dataset.manifest.kind == "prompts":
        return _answered(dataset, tokenizer, record)
    return InspectedRecord(
        index=index,
        origin=dataset.origin(index),
        tokens=len(record.input_ids),
        loss_tokens=int(record.loss_mask.sum()),
        pieces=_pieces(record, tokenizer),
    )


def _answered(dataset: DatasetFolder, tokenizer: ModelTokenizer | None, record: Record) -> InspectedRecord:
    """Return a prompt with its answers, if they were pulled here: prompt and answer of each turn in separate pieces."""
    rows, note = [(record.input_ids, record.loss_mask)], "not answered here"
    identity = identity_at(dataset.root)
    if identity is not None and (path := dataset.root / identity.folder / shard_name(record.index)).exists():
        found = read(TensorFile.open(path))
        rows, note = found.rows, _note(found.account)
    return InspectedRecord(
        index=record.index,
        origin=dataset.origin(record.index),
        tokens=sum(len(ids) for ids, _ in rows),
        loss_tokens=sum(int(mask.sum()) for _, mask in rows),
        pieces=[piece for ids, mask in rows for piece in _pieces(Record(record.index, ids, mask), tokenizer)],
        note=note,
    )


def _note(account: Account) -> str:
    """`2 turns: stop, length; marked length; 1 record`."""
    summary = account.summary
    said = [
        f"{summary.turns} {'turn' if summary.turns == 1 else 'turns'}: {', '.join(t.finish for t in account.turns)}"
    ]
    said += [f"marked {', '.join(summary.marks)}"] if summary.marks else []
    said += [f"left out: {summary.dropped}"] if summary.dropped else []
    said += [f"ended early: {summary.ended}"] if summary.ended else []
    return "; ".join([*said, f"{summary.rows} {'record' if summary.rows == 1 else 'records'}"])


def _pieces(record: Record, tokenizer: ModelTokenizer | None) -> list[Piece]:
    """Yield the runs of tokens with the same mask, as text, or as ids if there is no tokenizer."""
    edges = [0, *(np.flatnonzero(np.diff(record.loss_mask.astype(np.int8))) + 1).tolist(), len(record.loss_mask)]
    return [
        Piece(
            text=_shown(record.input_ids[start:stop].tolist(), tokenizer),
            masked=bool(record.loss_mask[start]),
            tokens=stop - start,
        )
        for start, stop in pairwise(edges)
    ]


def _shown(ids: list[int], tokenizer: ModelTokenizer | None) -> str:
    return tokenizer.decode(ids) if tokenizer is not None else " ".join(map(str, ids)) + " "
