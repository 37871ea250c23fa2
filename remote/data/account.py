"""Counts the records that `prepare` left out, with the reasons, and the lengths of the other records. Pure."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from remote.data.arrange import Catalogue
from remote.data.chunk import SpooledChunk, Tally
from remote.data.sources import Chunk
from remote.shared.messages.dataset import Drop, Source

DUPLICATE = "an exact copy of an earlier record"


def count_copies(tally: Tally, everything: Catalogue, kept: np.ndarray, sources: list[Source]) -> None:
    """Count the records that deduplication left out; `kept` are the places of the other records."""
    copies = np.setdiff1d(np.arange(len(everything.length)), kept, assume_unique=True)
    for place in copies.tolist():
        source, number = everything.origin[place].tolist()
        name = f"{Path(sources[source].path).name}:{number}"
        tally.drop(DUPLICATE, name, int(everything.length[place]))


def count_records(sources: list[Source], chunks: list[Chunk], spooled: list[SpooledChunk]) -> list[Source]:
    """Return the sources with the number of records that were found in each, used or not."""
    counts = [0] * len(sources)
    for chunk, found in zip(chunks, spooled, strict=True):
        counts[chunk.source] += len(found.rows) + sum(found.tally.dropped.values())
    return [source.model_copy(update={"records": count}) for source, count in zip(sources, counts, strict=True)]


def drop_table(tally: Tally) -> list[Drop]:
    """Return the reasons with their counts, the most frequent first."""
    return [
        Drop(reason=reason, records=count, tokens=tally.tokens_dropped[reason], examples=tally.examples[reason])
        for reason, count in sorted(tally.dropped.items(), key=lambda item: -item[1])
    ]


def why_empty(tally: Tally) -> str:
    """Return a sentence that says why no record is left."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in tally.dropped.items())
    return f"Left out: {reasons}." if reasons else "The inputs have no records."


def histogram(lengths: np.ndarray, bins: int = 16) -> list[tuple[int, int, int]]:
    """Return (from, to, records) over powers of two between the shortest and the longest record."""
    low = max(int(lengths.min()), 1).bit_length() - 1
    high = int(lengths.max()).bit_length()
    edges = [1 << power for power in range(low, high + 1)][-(bins + 1) :]
    counts, _ = np.histogram(lengths, bins=np.array([*edges[:-1], edges[-1]]))
    return [(edges[place], edges[place + 1], int(count)) for place, count in enumerate(counts)]
