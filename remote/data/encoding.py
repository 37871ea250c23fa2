"""Encodes text to ids, and finds the ids of the characters of a span. Called by `remote.data.tokenizer`; pure.

Tokens of byte-level vocabularies (Qwen, Llama 3, DeepSeek, GLM, gpt-oss, Kimi's tiktoken) are runs of the text's own
bytes. The sum of the lengths in bytes of the earlier tokens is therefore the place where a token begins. This is exact,
and faster than a tokenizer's offsets. If the sum of all lengths is not the text's length, the offsets are used instead.
"""

from __future__ import annotations

import json
import unicodedata
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from remote.shared.errors import RecordError

Spans = list[tuple[int, int]]
"""Half-open character ranges of a text, sorted and disjoint."""
Marked = tuple[np.ndarray, np.ndarray]
"""Ids int32 [L] and mask int8 [L]."""

_PLAIN_STEPS = {"ByteLevel", "Split", "Digits", "Sequence"}
"""Pre-tokenizers that cut a text without losing a part of it."""


class Encoder(ABC):
    """One way of encoding."""

    @abstractmethod
    def encode(self, texts: list[str], spans: list[Spans]) -> list[Marked]:
        """Return ids and mask of each text."""

    @abstractmethod
    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`, including special tokens."""


class FastEncoder(Encoder):
    """The `tokenizers` library."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        backend.no_padding()
        backend.no_truncation()

    def encode(self, texts: list[str], spans: list[Spans]) -> list[Marked]:
        if self._byte_lengths is None:
            return [self._by_offsets(text, span) for text, span in zip(texts, spans, strict=True)]
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        made: list[Marked] = []
        for text, span, encoding in zip(texts, spans, encodings, strict=True):
            ids = np.frombuffer(array("i", encoding.ids), np.int32)
            mask = self._by_bytes(text, span, ids)
            made.append((ids, mask) if mask is not None else self._by_offsets(text, span))
        return made

    def _by_bytes(self, text: str, spans: Spans, ids: np.ndarray) -> np.ndarray | None:
        assert self._byte_lengths is not None
        if self._composes and not unicodedata.is_normalized("NFC", text):
            return None
        return mask_by_bytes(text, spans, self._byte_lengths[ids])

    def _by_offsets(self, text: str, spans: Spans) -> Marked:
        encoding = self.backend.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids, np.int32)
        mask = np.zeros(len(ids), np.int8)
        for start, stop in spans:
            first = next(_found(encoding.char_to_token, range(start, stop)), None)
            last = next(_found(encoding.char_to_token, range(stop - 1, start - 1, -1)), None)
            if first is not None and last is not None:
                mask[first : last + 1] = 1
        return ids, mask

    @cached_property
    def _composes(self) -> bool:
        """Return whether the tokenizer first normalizes text to NFC, which may change its bytes."""
        return self.backend.normalizer is not None

    @cached_property
    def _byte_lengths(self) -> np.ndarray | None:
        """int32 [vocabulary]: the length of each id's token in bytes; None if tokens are not runs of bytes."""
        normalizer, steps = self.backend.normalizer, self.backend.pre_tokenizer
        if normalizer is not None and _state(normalizer).get("type") != "NFC":
            return None
        if steps is None or not _loses_nothing(_state(steps)):
            return None
        added = {index: str(token) for index, token in self.backend.get_added_tokens_decoder().items()}
        return byte_lengths(self.backend.get_vocab(with_added_tokens=True), added)

    def decode(self, ids: list[int]) -> str:
        text: str = self.backend.decode(ids, skip_special_tokens=False)
        return text


def _state(component: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state


def _loses_nothing(step: dict[str, Any]) -> bool:
    """Return whether a pre-tokenizer maps text to bytes one to one."""
    steps = step.get("pretokenizers", []) if step["type"] == "Sequence" else [step]
    return all(
        one["type"] in _PLAIN_STEPS and not one.get("add_prefix_space") and one.get("behavior") != "Removed"
        for one in steps
    ) and any(one["type"] == "ByteLevel" for one in steps)


class SlowEncoder(Encoder):
    """A transformers object that does not use the `tokenizers` library, such as Kimi's (tiktoken)."""

    def __init__(self, hf: Any) -> None:
        self._hf = hf

    def encode(self, texts: list[str], spans: list[Spans]) -> list[Marked]:
        return [self._one(text, span) for text, span in zip(texts, spans, strict=True)]

    def _one(self, text: str, spans: Spans) -> Marked:
        ids = np.array(self._ids(text), np.int32)
        if self._bytes_of is not None:
            pieces = [self._bytes_of.get(token) for token in ids.tolist()]
            if None not in pieces and b"".join(pieces) == text.encode():  # type: ignore[arg-type]
                mask = mask_by_bytes(text, spans, np.array([len(piece or b"") for piece in pieces], np.int32))
                assert mask is not None
                return ids, mask
        return ids, self._by_segments(text, spans, ids)

    def _by_segments(self, text: str, spans: Spans, ids: np.ndarray) -> np.ndarray:
        """Encode span by span, and check that no token crosses the edge of a span.

        Chat templates put special tokens at a turn's edges, where no merge can happen, so the ids of the pieces are the
        ids of the whole text. If they are not, the record is refused, because its mask would be wrong by a token.
        """
        pieces: list[int] = []
        mask: list[int] = []
        edges = [0, *(edge for span in spans for edge in span), len(text)]
        for number, (start, stop) in enumerate(pairwise(edges)):
            piece = self._ids(text[start:stop]) if stop > start else []
            pieces += piece
            mask += [number % 2] * len(piece)
        if pieces != ids.tolist():
            raise RecordError(
                "a token crosses the edge of an assistant turn, and this tokenizer gives no offsets",
                remedy="Use a fast tokenizer for this model, or give input_ids and loss_mask.",
            )
        return np.array(mask, np.int8)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._hf.encode(text, add_special_tokens=False)
        return ids

    @cached_property
    def _bytes_of(self) -> dict[int, bytes] | None:
        """Return the bytes of every token; None if the vocabulary is not written in the byte-level alphabet."""
        byte_of = {symbol: byte for byte, symbol in enumerate(alphabet())}
        found = {index: str(token).encode() for index, token in self._hf.added_tokens_decoder.items()}
        vocabulary = self._hf.get_vocab()
        for token, index in vocabulary.items():
            if index not in found and all(symbol in byte_of for symbol in token):
                found[index] = bytes(byte_of[symbol] for symbol in token)
        return found if len(found) >= len(vocabulary) - len(self._hf.added_tokens_decoder) else None

    def decode(self, ids: list[int]) -> str:
        text: str = self._hf.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def mask_by_bytes(text: str, spans: Spans, lengths: np.ndarray) -> np.ndarray | None:
    """Return the mask int8 [L] of tokens of `lengths` bytes; None if the sum of `lengths` is not the text's length."""
    ends = np.cumsum(lengths, dtype=np.int64)
    size = len(text) if text.isascii() else len(text.encode())
    if not len(ends) or ends[-1] != size:
        return None
    mask = np.zeros(len(ends), np.int8)
    if spans:
        edges = np.array(list(_byte_edges(text, spans)), np.int64).reshape(-1, 2)
        firsts = np.searchsorted(ends, edges[:, 0], side="right")
        # A token begins at the end of the token before it.
        lasts = np.searchsorted(ends[:-1], edges[:, 1], side="left") + 1
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            mask[first:last] = 1
    return mask


def _byte_edges(text: str, spans: Spans) -> Iterable[int]:
    """Return the spans' edges in bytes of UTF-8 instead of characters."""
    if text.isascii():
        return (edge for span in spans for edge in span)
    edges, before, at = [], 0, 0
    for span in spans:
        for edge in span:
            before, at = before + len(text[at:edge].encode()), edge
            edges.append(before)
    return edges


def byte_lengths(vocabulary: dict[str, int], added: dict[int, str]) -> np.ndarray | None:
    """Return int32 [highest id + 1], the length of each token in bytes; None if a byte has no token of its own.

    A text with such a byte would lose the byte.
    """
    if not all(symbol in vocabulary for symbol in alphabet()):
        return None
    lengths = np.zeros(max([*vocabulary.values(), *added]) + 1, np.int32)
    for token, index in vocabulary.items():
        lengths[index] = len(token)
    for index, content in added.items():
        lengths[index] = len(content.encode())
    return lengths


@lru_cache(maxsize=1)
def alphabet() -> list[str]:
    """Return the symbol of each byte in byte-level vocabularies (GPT-2's table): printable bytes are themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in set(plain) else chr(next(others)) for byte in range(256)]


def _found(lookup: Any, places: range) -> Iterator[int]:
    """Return the tokens of the characters at `places`. Trimmed white space has no token."""
    return (token for token in map(lookup, places) if token is not None)
