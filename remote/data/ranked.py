"""Encodes byte-level BPE with tiktoken, if tiktoken is proved to give the same ids as the `tokenizers` library.

Called by `remote.data.tokenizer`. tiktoken is several times as fast, and returns an array instead of a list. tiktoken
merges the pair whose bytes have the lowest rank; the `tokenizers` library merges the first pair in its list of merges.
Both give the same ids if every merge joins tokens of earlier merges, and the bytes of every token merge to that token:
then a pair with the bytes of a token can only be the pair in the token's merge. `prove` checks this for the whole
vocabulary. It also checks that both regular-expression engines put each character into the same classes. Texts with a
character for which they do not, or for which this is unknown, are encoded by the `tokenizers` library.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from remote.data.encoding import Encoder, Marked, Spans, alphabet, mask_by_bytes

_ONE_PIECE = r"(?s:.+)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The expression by which `ByteLevel(use_regex=True)` splits."""
_CLASS = r"\\p\{(?:L|N|M|P|S|Lu|Ll|Lt|Lm|Lo|Nd|Mn)\}|\\[sS]"
_UNDERSTOOD = re.compile(
    rf"(?:{_CLASS}|\\[rn]|\((?:\?i:|\?!|\?:)|[)|' /]|\[\^?(?:{_CLASS}|\\[rn]|[/ '])+\]|[a-z]|[?+*](?![?+*])|"
    r"\{\d(?:,\d)?\}(?![?+*]))+"
)
"""Expressions that both engines understand alike: classes, ordered alternatives, greedy counts, look-ahead."""
_LOOKED_AT = 0x34000
"""Characters from this one on are left to the `tokenizers` library: private, unassigned, tags, variation selectors."""


@dataclass(frozen=True)
class Ranked:
    """The parts of a tokenizer that tiktoken needs, and the limits of the proof."""

    pattern: str
    tokens: list[str]
    """Tokens in the byte-level alphabet, ordered by rank."""
    ids: list[int]
    added: dict[str, int]
    composes: bool
    """Whether the tokenizer normalizes to NFC. Texts that are not in NFC are then left to the `tokenizers` library."""
    doubtful: list[tuple[int, int]]
    """Half-open ranges of code points. Texts with such a code point are left to the `tokenizers` library."""


def prove(description: str) -> Ranked | None:
    """Return the parts of a tokenizer, given as `tokenizer.json`, for tiktoken; None if tiktoken may give other ids."""
    try:
        import tiktoken  # noqa: F401
    except ImportError:
        return None
    state = json.loads(description)
    pattern = _pattern(state["pre_tokenizer"])
    composes = _composes(state["normalizer"])
    if pattern is None or composes is None or not _is_plain_model(state["model"]) or not _are_plain(state, composes):
        return None
    merges = _merges(state)
    if merges is None or not _all_reached(state["model"], merges):
        return None
    doubtful = _disagreeing(pattern) | (_composed_otherwise() if composes else set())
    return Ranked(
        pattern=pattern,
        tokens=merges.tokens,
        ids=[state["model"]["vocab"][token] for token in merges.tokens],
        added={one["content"]: one["id"] for one in state["added_tokens"]},
        composes=composes,
        doubtful=[*_ranges(doubtful), (_LOOKED_AT, 0x110000)],
    )


class RankedEncoder(Encoder):
    """Encodes with tiktoken, and texts outside the proof with the `tokenizers` library."""

    def __init__(self, ranked: Ranked, other: Callable[[], Encoder]) -> None:
        import tiktoken

        symbols = {ord(symbol): byte for byte, symbol in enumerate(alphabet())}
        pieces = [token.translate(symbols).encode("latin-1") for token in ranked.tokens]
        self._tiktoken = tiktoken.Encoding(
            "roost",
            pat_str=ranked.pattern,
            mergeable_ranks={piece: rank for rank, piece in enumerate(pieces)},
            special_tokens={token: len(pieces) + place for place, token in enumerate(ranked.added)},
        )
        self._ids = np.array([*ranked.ids, *ranked.added.values()], np.int32)
        self._sizes = np.array([*map(len, pieces), *(len(token.encode()) for token in ranked.added)], np.int32)
        self._composes = ranked.composes
        self._is_doubtful = np.zeros(0x110000, bool)
        for start, stop in ranked.doubtful:
            self._is_doubtful[start:stop] = True
        self._make_other = other

    @cached_property
    def _other(self) -> Encoder:
        return self._make_other()

    def encode(self, texts: list[str], spans: list[Spans]) -> list[Marked]:
        return [
            self._ranked(text, one) or self._other.encode([text], [one])[0]
            for text, one in zip(texts, spans, strict=True)
        ]

    def _ranked(self, text: str, spans: Spans) -> Marked | None:
        if not text.isascii() and self._doubts(text):
            return None
        try:
            ranks = self._tiktoken.encode_to_numpy(text, allowed_special="all")
        except ValueError:  # its regular expressions fail on very long white space
            return None
        mask = mask_by_bytes(text, spans, self._sizes[ranks])
        return (self._ids[ranks], mask) if mask is not None else None

    def _doubts(self, text: str) -> bool:
        if self._composes and not unicodedata.is_normalized("NFC", text):
            return True
        return bool(self._is_doubtful[np.frombuffer(text.encode("utf-32-le"), np.uint32)].any())

    def decode(self, ids: list[int]) -> str:
        return self._other.decode(ids)


def _composes(normalizer: dict[str, Any] | None) -> bool | None:
    """Return whether the tokenizer normalizes to NFC; None if it normalizes in another way."""
    if normalizer is None or (normalizer["type"] == "Sequence" and not normalizer["normalizers"]):
        return False
    return True if normalizer["type"] == "NFC" else None


def _composed_otherwise() -> set[int]:
    """Return the code points that Python does not know, or composes differently than the `tokenizers` library."""
    from tokenizers import normalizers

    points = [point for point in _code_points() if point > 0x7F]
    parted = [unicodedata.normalize("NFD", chr(point)) for point in points]
    theirs = normalizers.NFC().normalize_str("\n".join(parted)).split("\n")
    ours = [unicodedata.normalize("NFC", one) for one in parted]
    unequal = {point for point, one, other in zip(points, ours, theirs, strict=True) if one != other}
    return unequal | {point for point in points if unicodedata.category(chr(point)) == "Cn"}


def _code_points() -> list[int]:
    return [*range(0xD800), *range(0xE000, _LOOKED_AT)]


def _pattern(step: dict[str, Any] | None) -> str | None:
    """Return the expression that splits a text before merging; None if it takes more than one expression."""
    steps: list[dict[str, Any]] = step["pretokenizers"] if step and step["type"] == "Sequence" else [step or {}]
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    by_itself = steps[-1].get("use_regex", True)
    if len(steps) == 1:
        return _GPT2 if by_itself else _ONE_PIECE
    first = steps[0]
    if len(steps) > 2 or by_itself or first["type"] != "Split" or first["behavior"] != "Isolated" or first["invert"]:
        return None
    pattern = first["pattern"].get("Regex")
    return pattern if pattern and _UNDERSTOOD.fullmatch(pattern) else None


def _is_plain_model(model: dict[str, Any]) -> bool:
    """Return whether the model is plain BPE."""
    more = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    return model["type"] == "BPE" and not any(model.get(key) for key in more)


def _are_plain(state: dict[str, Any], composes: bool) -> bool:
    """Return whether added tokens match the text literally, and never two added tokens at one place."""
    added = state["added_tokens"]
    contents = sorted(one["content"] for one in added)
    ambiguous = any(longer.startswith(token) for token, longer in pairwise(contents))
    changed = any(one["single_word"] or one["lstrip"] or one["rstrip"] for one in added)
    in_turn = len({one["normalized"] for one in added}) > 1 or (composes and any(one["normalized"] for one in added))
    return not ambiguous and not changed and not in_turn and all(contents)


@dataclass(frozen=True)
class _Merges:
    """The merges that can happen, and the tokens that they make. The tokens of single bytes come first."""

    tokens: list[str]
    pairs: list[tuple[str, str]]


def _merges(state: dict[str, Any]) -> _Merges | None:
    """Return the merges in their order; None if the merges of a token do not follow one another.

    A token may have several consecutive merges (Llama 3 lists all). A merge whose parts are made after the token itself
    never happens, because the bytes are the token by then.
    """
    model = state["model"]
    vocabulary = model["vocab"]
    found = _Merges(list(alphabet()), [])
    known = set(found.tokens)
    if not known <= vocabulary.keys():
        return None
    pairs = (tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"])
    for token, group in groupby(pairs, key="".join):
        possible = [(left, right) for left, right in group if left in known and right in known]
        if not possible or token in known or token not in vocabulary:
            return None
        known.add(token)
        found.tokens.append(token)
        found.pairs.extend(possible)
    added = {one["content"] for one in state["added_tokens"]}
    return None if model.get("ignore_merges") and vocabulary.keys() - known - added else found


def _all_reached(model: dict[str, Any], merges: _Merges) -> bool:
    """Return whether the bytes of every token merge to that token."""
    from tokenizers import Tokenizer

    alone = {**model, "ignore_merges": False, "merges": merges.pairs}
    bare = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": alone}))
    found = bare.encode_batch_fast(merges.tokens, add_special_tokens=False)
    return all(len(one.ids) == 1 for one in found)


def _disagreeing(pattern: str) -> set[int]:
    """Return the code points that the two engines put into different classes of `pattern`."""
    everything = "".join(map(chr, _code_points()))
    classes = {found.lower() if found == "\\S" else found for found in re.findall(_CLASS, pattern)}
    unequal = set().union(*(_unequally_matched(one, everything)[0] for one in classes))
    letters = {letter for group in re.findall(r"\(\?i:([^)]*)\)", pattern) for letter in group if letter.isalpha()}
    if letters:
        differing, folded = _unequally_matched(f"(?i:[{''.join(sorted(letters))}])", everything)
        unequal |= differing.union(*(_unequally_matched(f"(?i:{letter})", folded)[0] for letter in letters))
    return set(map(ord, unequal))


def _unequally_matched(expression: str, text: str) -> tuple[set[str], str]:
    """Return the characters that only one engine matches, and all that `tokenizers` matches as a text."""
    run = f"(?:{expression})+"
    theirs = _matched_by_tokenizers(run, text)
    return set(_matched_by_tiktoken(run, text)) ^ set(theirs), theirs


def _matched_by_tiktoken(expression: str, text: str) -> str:
    import tiktoken

    bytewise = tiktoken.Encoding(
        "bytes", pat_str=expression, mergeable_ranks={bytes([byte]): byte for byte in range(256)}, special_tokens={}
    )
    content: bytes = bytewise.encode_to_numpy(text).astype(np.uint8).tobytes()
    return content.decode()


def _matched_by_tokenizers(expression: str, text: str) -> str:
    from tokenizers import Regex, pre_tokenizers

    kept = pre_tokenizers.Split(Regex(expression), "removed", invert=True)
    return "".join(piece for piece, _ in kept.pre_tokenize_str(text))


def _ranges(points: set[int]) -> list[tuple[int, int]]:
    """Return the half-open ranges of consecutive numbers."""
    runs = groupby(enumerate(sorted(points)), key=lambda item: item[1] - item[0])
    found = [[point for _, point in run] for _, run in runs]
    return [(run[0], run[-1] + 1) for run in found]
