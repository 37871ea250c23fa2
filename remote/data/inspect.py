"""Verb `inspect`: records of a dataset as a trainer sees them, cut where the loss mask changes.

Runs where the dataset and its tokenizer are; read-only. The laptop colours the pieces.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from remote.context import Context
from remote.data.dataset import DatasetFolder, Record
from remote.data.template import quiet_transformers
from remote.data.tokenizer import ModelTokenizer, TokenizerSpec, load
from remote.shared.errors import UsageError
from remote.shared.messages.dataset import InspectedRecord, InspectRequest, InspectResult, Piece


def inspect(request: InspectRequest, context: Context) -> InspectResult:
    """Stream each record of `request` as an item; the manifest is the result."""
    dataset = DatasetFolder.open(request.dataset)
    if request.indices:
        quiet_transformers()
        path = request.tokenizer or dataset.manifest.tokenizer_path
        tokenizer = load(TokenizerSpec(path, request.trust_remote_code))
        _refuse_another(tokenizer, dataset)
        for index in request.indices:
            context.report.item(_inspected(dataset, tokenizer, index))
    return InspectResult(manifest=dataset.manifest)


def _refuse_another(tokenizer: ModelTokenizer, dataset: DatasetFolder) -> None:
    """Ids shown with another vocabulary would be another text."""
    if tokenizer.digest() != dataset.manifest.tokenizer:
        raise UsageError(
            f"The tokenizer at {tokenizer.path} is not the one that made this dataset.",
            remedy="Give the right one with --tokenizer.",
        )


def _inspected(dataset: DatasetFolder, tokenizer: ModelTokenizer, index: int) -> InspectedRecord:
    record = dataset.record(index)
    return InspectedRecord(
        index=index,
        origin=dataset.origin(index),
        tokens=len(record.input_ids),
        loss_tokens=int(record.loss_mask.sum()),
        pieces=_pieces(record, tokenizer),
    )


def _pieces(record: Record, tokenizer: ModelTokenizer) -> list[Piece]:
    edges = [0, *(np.flatnonzero(np.diff(record.loss_mask)) + 1).tolist(), len(record.loss_mask)]
    return [
        Piece(
            text=tokenizer.decode(record.input_ids[start:stop].tolist()),
            masked=bool(record.loss_mask[start]),
            tokens=stop - start,
        )
        for start, stop in pairwise(edges)
    ]
