"""Turns one chunk of a source into tokenized records in the spool: the work of each worker process of `prepare`.

Writes `<spool>/<chunk>.records` (for each record its ids as int32, then its mask as int8) and, last and whole,
`<spool>/<chunk>.index` with everything else: a line of JSON, and a row of `ROW` for each record. A chunk whose `.index`
exists is done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from remote.data import rendering
from remote.data.carried import open_tokenizer
from remote.data.encoding import Marked, Spans
from remote.data.fitting import Unread, check_shown, fit
from remote.data.records import Conversation, LeftOutError, Reading, Tokens, normalize
from remote.data.sources import Chunk, read
from remote.data.spans import assistant_spans
from remote.data.template import ChatTemplate
from remote.data.tokenizer import ModelTokenizer, TokenizerSpec
from remote.shared.errors import RecordError
from remote.shared.files import write_whole, written_aside
from remote.shared.messages.dataset import MaskMethod

METHODS: tuple[MaskMethod, ...] = ("generation", "marker", "given")
BYTES_PER_TOKEN = 5
_EXAMPLES = 3
_BATCH_CHARACTERS = 1 << 20
"""Characters of text in one call of the tokenizer, which limit a worker's memory."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a record's tokens. All chunks have the same recipe."""

    tokenizer: TokenizerSpec
    template_options: tuple[tuple[str, Any], ...]
    date: str
    """The date (ISO) for templates that write today's date; "" for other templates."""
    max_len: int | None
    truncate: bool
    min_len: int
    vocab_size: int
    reading: Reading = field(default_factory=Reading)


@dataclass
class Tally:
    """Counts of one chunk, or of all chunks."""

    dropped: dict[str, int] = field(default_factory=dict)
    tokens_dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    """Message keys that the chat template does not read, as `ROLE.KEY`, with the number of messages that have them."""
    bad: list[str] = field(default_factory=list)
    """`FILE:NUMBER: cause` of the first few records that cannot be used."""
    remedy: str = ""
    """What a person can do about the first of these records."""

    def drop(self, reason: str, name: str, tokens: int = 0) -> None:
        """Count one record as left out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.tokens_dropped[reason] = self.tokens_dropped.get(reason, 0) + tokens
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _EXAMPLES:
            examples.append(name)

    def add(self, other: Tally) -> None:
        """Add the counts of `other`."""
        for mine, theirs in (
            (self.dropped, other.dropped),
            (self.tokens_dropped, other.tokens_dropped),
            (self.unread, other.unread),
        ):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count
        for reason, examples in other.examples.items():
            known = self.examples.setdefault(reason, [])
            known += examples[: _EXAMPLES - len(known)]
        self.bad += other.bad


ROW = np.dtype(
    [
        ("number", "<i8"),  # of the record in its source
        ("length", "<i4"),  # tokens
        ("loss", "<i4"),  # tokens with mask 1
        ("digest", "<u8", (2,)),  # xxh3-128 of ids and mask, high half first
        ("method", "u1"),  # the place in METHODS of the method that made the mask
        ("truncated", "?"),
    ]
)
"""One record in a chunk's index."""


@dataclass(frozen=True)
class SpooledChunk:
    """The spool's content for one chunk, without the tokens of the records."""

    rows: np.ndarray
    """ROW [N]."""
    tally: Tally


class DroppedRecord(Exception):
    """Control flow inside this module: a record that is left out on purpose (too long, or empty after cutting)."""

    def __init__(self, reason: str, tokens: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tokens = tokens


def spool_chunk(recipe: Recipe, task: tuple[Chunk, Path]) -> None:
    """Tokenize one chunk into the spool. This is the task of worker processes."""
    _worker(recipe).spool(*task)


@lru_cache(maxsize=1)
def _worker(recipe: Recipe) -> ChunkWorker:
    return ChunkWorker(recipe)


@dataclass(frozen=True)
class _Text:
    """A conversation that is rendered and not encoded yet."""

    text: str
    spans: Spans
    method: MaskMethod
    unread: Unread


class ChunkWorker:
    """Tokenizes chunks. Loads the tokenizer once in a process, and only if a chunk needs it."""

    def __init__(self, recipe: Recipe) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.recipe = recipe

    @cached_property
    def tokenizer(self) -> ModelTokenizer:
        return open_tokenizer(self.recipe.tokenizer)

    @cached_property
    def template(self) -> ChatTemplate:
        return ChatTemplate(self.tokenizer, dict(self.recipe.template_options), self.recipe.date)

    def spool(self, chunk: Chunk, target: Path) -> None:
        """Tokenize `chunk` into `target` (a path without suffix); do nothing if an earlier run did so."""
        if target.with_suffix(".index").exists():
            return
        tally = Tally()
        rows: list[tuple[object, ...]] = []
        # Without fsync: a spool counts only until the next boot, and a killed process loses no written bytes.
        aside_of = written_aside(target.with_suffix(".records"), durable=False)
        with rendering.alarms(), aside_of as aside, aside.open("wb") as out:
            for number, ids, mask, method, truncated in self._records(chunk, tally):
                content = ids.tobytes() + mask.tobytes()
                out.write(content)
                digest = divmod(xxhash.xxh3_128_intdigest(content), 1 << 64)
                rows.append((number, len(ids), int(mask.sum()), digest, METHODS.index(method), truncated))
        index = json.dumps(asdict(tally)).encode() + b"\n" + np.array(rows, ROW).tobytes()
        write_whole(target.with_suffix(".index"), index, durable=False)

    def _records(self, chunk: Chunk, tally: Tally) -> Iterator[tuple[int, np.ndarray, np.ndarray, MaskMethod, bool]]:
        batch: list[tuple[int, _Text | Tokens | RecordError]] = []
        size = 0
        for number, raw in read(chunk):
            made = self._read(raw)
            batch.append((number, made))
            size += len(made.text) if isinstance(made, _Text) else 0
            if size >= _BATCH_CHARACTERS:
                yield from self._encoded(chunk, batch, tally)
                batch, size = [], 0
        yield from self._encoded(chunk, batch, tally)

    def _encoded(
        self, chunk: Chunk, batch: list[tuple[int, _Text | Tokens | RecordError]], tally: Tally
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray, MaskMethod, bool]]:
        marked = self._marked([made for _, made in batch])
        for (number, made), found in zip(batch, marked, strict=True):
            name = f"{chunk.name}:{number}"
            try:
                if isinstance(found, LeftOutError):
                    raise DroppedRecord(found.message)
                if isinstance(found, RecordError):
                    raise found
                ids, mask = found
                _check(ids, mask, self.recipe.vocab_size)
                kept_ids, kept_mask = self._within_limits(ids, mask)
            except RecordError as error:
                tally.drop(error.message, name)
                if len(tally.bad) < _EXAMPLES:
                    tally.remedy = tally.remedy if tally.bad else error.remedy
                    tally.bad.append(f"{name}: {error.message}")
                continue
            except DroppedRecord as dropped:
                tally.drop(dropped.reason, name, dropped.tokens)
                continue
            for key, count in made.unread.items() if isinstance(made, _Text) else ():
                tally.unread[key] = tally.unread.get(key, 0) + count
            method = made.method if isinstance(made, _Text) else "given"
            yield number, kept_ids, kept_mask, method, len(kept_ids) < len(ids)

    def _marked(
        self, made: list[_Text | Tokens | RecordError]
    ) -> Iterator[tuple[np.ndarray, np.ndarray] | RecordError]:
        """Return ids and mask of each text. One call encodes all texts, unless a text among them cannot be encoded."""
        texts = [one for one in made if isinstance(one, _Text)]
        encoded: Iterator[Marked | RecordError] = iter(())
        if texts:
            try:
                encoded = iter(self.tokenizer.encode([one.text for one in texts], [one.spans for one in texts]))
            except RecordError:
                encoded = map(self._encoded_alone, texts)
        for one in made:
            if isinstance(one, _Text):
                yield next(encoded)
            elif isinstance(one, Tokens):
                yield np.asarray(one.input_ids, np.int64), np.asarray(one.loss_mask, np.int8)
            else:
                yield one

    def _encoded_alone(self, one: _Text) -> Marked | RecordError:
        try:
            return self.tokenizer.encode([one.text], [one.spans])[0]
        except RecordError as error:
            return error

    def _read(self, raw: Any) -> _Text | Tokens | RecordError:
        if isinstance(raw, RecordError):
            return raw
        try:
            record = normalize(raw, self.recipe.reading)
            return record if isinstance(record, Tokens) else self._text_of(record)
        except RecordError as error:
            return error

    def _text_of(self, conversation: Conversation) -> _Text:
        fitted, unread = fit(self.template, conversation)
        text, spans, method = assistant_spans(self.template, fitted)
        check_shown(conversation, fitted, text, unread)
        return _Text(text, spans, method, unread)

    def tokenize(self, raw: Any) -> tuple[np.ndarray, np.ndarray, MaskMethod]:
        """Return ids int32 [L], mask int8 [L] and the mask's method of one record; raise RecordError."""
        made = self._read(raw)
        (found,) = self._marked([made])
        if isinstance(found, RecordError):
            raise found
        _check(*found, self.recipe.vocab_size)
        return found[0].astype(np.int32), found[1], made.method if isinstance(made, _Text) else "given"

    def _within_limits(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        recipe = self.recipe
        if len(ids) < recipe.min_len:
            raise DroppedRecord(f"shorter than {recipe.min_len} tokens", len(ids))
        if recipe.max_len is None or len(ids) <= recipe.max_len:
            return ids.astype(np.int32, copy=False), mask
        if not recipe.truncate:
            raise DroppedRecord(f"longer than {recipe.max_len} tokens", len(ids))
        if not mask[: recipe.max_len].any():
            raise DroppedRecord(f"no assistant token in its first {recipe.max_len} tokens", len(ids))
        return ids[: recipe.max_len].astype(np.int32, copy=False), mask[: recipe.max_len]


def _check(ids: np.ndarray, mask: np.ndarray, vocab_size: int) -> None:
    if not len(ids):
        raise RecordError("it has no tokens")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise RecordError(f"token id {low if low < 0 else high} is outside the vocabulary of {vocab_size}")
    if not mask.any():
        raise RecordError("its loss mask is all 0: the template shows no assistant turn whose weight is above 0")
    if mask.all():
        raise RecordError("its loss mask is all 1: it has no prompt, only answers")


def read_index(path: Path) -> SpooledChunk:
    """Return the index that `ChunkWorker.spool` wrote last."""
    tally, _, rows = path.read_bytes().partition(b"\n")
    return SpooledChunk(np.frombuffer(rows, ROW), Tally(**json.loads(tally)))
