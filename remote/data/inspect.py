"""Verb `inspect`: records of a dataset as a trainer sees them, cut where the loss mask changes.

Runs where the dataset and its tokenizer are; read-only. The laptop colours the pieces.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from remote.context import Context
from remote.data.dataset import DatasetFolder, Record
from remote.data.tokenizer import ModelTokenizer, TokenizerSpec, load
from remote.shared.errors import UsageError
from remote.shared.messages.dataset import InspectedRecord, InspectRequest, InspectResult, Piece


def inspect(request: InspectRequest, context: Context) -> InspectResult:
    """Stream each record of `request` as an item; the manifest is the result."""
    dataset = DatasetFolder.open(request.dataset)
    if request.indices:
        tokenizer = _tokenizer_of(dataset, request)
        for index in request.indices:
            context.report.item(_inspected(dataset, tokenizer, index))
    return InspectResult(manifest=dataset.manifest)


def _tokenizer_of(dataset: DatasetFolder, request: InspectRequest) -> ModelTokenizer | None:
    """The tokenizer that made the dataset; None for one of tokenized records that was made without any."""
    if not dataset.manifest.tokenizer and not request.tokenizer:
        return None
    path = request.tokenizer or dataset.manifest.tokenizer_path
    tokenizer = load(TokenizerSpec(path, request.trust_remote_code))
    if dataset.manifest.tokenizer and tokenizer.digest != dataset.manifest.tokenizer:
        # Ids shown with another vocabulary would be another text.
        raise UsageError(
            f"The tokenizer at {tokenizer.path} is not the one that made this dataset.",
            remedy="Give the right one with --tokenizer.",
        )
    return tokenizer


def _inspected(dataset: DatasetFolder, tokenizer: ModelTokenizer | None, index: int) -> InspectedRecord:
    record = dataset.record(index)
    return InspectedRecord(
        index=index,
        origin=dataset.origin(index),
        tokens=len(record.input_ids),
        loss_tokens=int(record.loss_mask.sum()),
        pieces=_pieces(record, tokenizer),
    )


def _pieces(record: Record, tokenizer: ModelTokenizer | None) -> list[Piece]:
    """The runs of tokens with the same mask; as ids if there is no tokenizer."""
    edges = [0, *(np.flatnonzero(np.diff(record.loss_mask)) + 1).tolist(), len(record.loss_mask)]
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
