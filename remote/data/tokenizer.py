"""The model's own tokenizer: text to ids with the place of each character, and digests of what decides them.

Runs under the data verbs, in every worker process; reads the tokenizer's folder, writes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import xxhash

from remote.shared.errors import HostError, RecordError, UsageError

Spans = list[tuple[int, int]]
"""Half-open character ranges of a rendered text, sorted and disjoint."""


@dataclass(frozen=True)
class TokenizerSpec:
    """What a worker process needs to load the same tokenizer again."""

    path: str
    trust_remote_code: bool = False


@dataclass
class ModelTokenizer:
    """A loaded tokenizer; `hf` is the transformers object."""

    hf: Any
    path: str

    def encode(self, text: str, spans: Spans) -> tuple[list[int], list[int]]:
        """Return ids and a 0/1 mask of the same length: 1 on every token that holds a character of `spans`.

        No special tokens are added: a chat template writes its own. A token that straddles the edge of a span
        counts as inside, as in transformers' own `return_assistant_tokens_mask`.
        """
        if self.hf.is_fast:
            return self._encode_with_offsets(text, spans)
        return self._encode_by_segments(text, spans)

    def _encode_with_offsets(self, text: str, spans: Spans) -> tuple[list[int], list[int]]:
        encoding = self.hf(text, add_special_tokens=False, return_attention_mask=False, verbose=False)
        ids: list[int] = encoding["input_ids"]
        mask = [0] * len(ids)
        for start, stop in spans:
            first = next(_found(encoding.char_to_token, range(start, stop)), None)
            last = next(_found(encoding.char_to_token, range(stop - 1, start - 1, -1)), None)
            if first is not None and last is not None:
                mask[first : last + 1] = [1] * (last + 1 - first)
        return ids, mask

    def _encode_by_segments(self, text: str, spans: Spans) -> tuple[list[int], list[int]]:
        """For tokenizers without offsets (tiktoken): encode span by span, and prove that nothing merged across.

        Chat templates put special tokens at a turn's edges, where no merge can happen, so the pieces' ids are
        the whole text's ids; a template for which that fails is refused instead of masked a token off.
        """
        ids: list[int] = []
        mask: list[int] = []
        edges = [0, *(edge for span in spans for edge in span), len(text)]
        for number, (start, stop) in enumerate(pairwise(edges)):
            piece = self._plain_ids(text[start:stop]) if stop > start else []
            ids += piece
            mask += [number % 2] * len(piece)
        if ids != self._plain_ids(text):
            raise RecordError(
                "its tokens merge across the edge of an assistant turn and this tokenizer gives no offsets",
                remedy="Use a fast tokenizer for this model, or give input_ids and loss_mask.",
            )
        return ids, mask

    def _plain_ids(self, text: str) -> list[int]:
        ids: list[int] = self.hf.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`, special tokens shown."""
        text: str = self.hf.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def end_tokens(self) -> set[str]:
        """Tokens at which generation ends: the end of sequence, and those of the model's generation config."""
        ends = {self.hf.eos_token} if self.hf.eos_token else set()
        config = Path(self.path) / "generation_config.json"
        if config.is_file():
            ids = json.loads(config.read_text()).get("eos_token_id", [])
            ends |= {self.hf.convert_ids_to_tokens(token) for token in (ids if isinstance(ids, list) else [ids])}
        return ends

    def digest(self) -> str:
        """xxh3-128 of everything that decides how text becomes ids."""
        if self.hf.is_fast:
            return xxhash.xxh3_128_hexdigest(self.hf.backend_tokenizer.to_str().encode())
        vocabulary = sorted(self.hf.get_vocab().items(), key=lambda item: item[1])
        added = sorted((index, str(token)) for index, token in self.hf.added_tokens_decoder.items())
        return xxhash.xxh3_128_hexdigest(json.dumps([type(self.hf).__name__, vocabulary, added]).encode())

    def vocab_size(self) -> int:
        """Return the model's embedding rows where its config lies beside the tokenizer, else the vocabulary."""
        config = Path(self.path) / "config.json"
        if config.is_file():
            values = json.loads(config.read_text())
            rows = values.get("vocab_size") or values.get("text_config", {}).get("vocab_size")
            if isinstance(rows, int):
                return rows
        return len(self.hf)


def _found(lookup: Any, places: range) -> Any:
    """Tokens at `places`, where there is one (trimmed white space belongs to none)."""
    return (token for token in map(lookup, places) if token is not None)


def load(spec: TokenizerSpec) -> ModelTokenizer:
    """Load the tokenizer at `spec.path`; raise UsageError or HostError with the reason."""
    from transformers import AutoTokenizer

    looks_like_path = spec.path.startswith(("/", "~", "."))
    path = str(Path(spec.path).expanduser()) if looks_like_path else spec.path
    if looks_like_path and not Path(path).is_dir():
        raise UsageError(
            f"There is no tokenizer at {path}: no such folder.",
            remedy="Copy the model's tokenizer files (no weights) here and name their folder with --tokenizer.",
        )
    try:
        hf = AutoTokenizer.from_pretrained(path, trust_remote_code=spec.trust_remote_code)
    except Exception as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise HostError(
            f"The tokenizer at {path} could not be loaded: {first_line}",
            remedy="" if spec.trust_remote_code else "If it brings code of its own, allow --trust-remote-code.",
        ) from error
    return ModelTokenizer(hf, path)
