"""The model's own tokenizer: encodes text to ids and a mask, and computes a digest of everything that decides them.

Called by the data verbs. Worker processes of `prepare` load the tokenizer from one file (`remote.data.carried`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from remote.data.encoding import Encoder, FastEncoder, SlowEncoder, Spans
from remote.model_config import find_number
from remote.shared.errors import HostError, UsageError

Encoded = list[tuple[np.ndarray, np.ndarray]]
"""For each text its ids, int32 [L], and its 0/1 mask, int8 [L]."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "tiktoken.model")


@dataclass(frozen=True)
class TokenizerSpec:
    """The settings from which a worker process loads the same tokenizer."""

    path: str
    trust_remote_code: bool = False
    carried: str = ""
    """Path of the file that `remote.data.carried` made; "" if transformers has to load the tokenizer."""


@dataclass(frozen=True)
class Words:
    """The parts of a tokenizer that a chat template uses."""

    chat_template: str | dict[str, str] | None
    variables: dict[str, Any]
    """`bos_token` and similar variables, as templates read them."""
    specials: list[str]
    """Special tokens, the longest first."""
    ends: list[str]
    """Tokens at which generation ends: the tokenizer's and those of `generation_config.json` beside it."""

    def template_for(self, tools: Any) -> str:
        """Return the template for a conversation with or without tools; raise UsageError if there is none."""
        if isinstance(self.chat_template, str):
            return self.chat_template
        named = self.chat_template or {}
        text = named.get("tool_use") if tools is not None and "tool_use" in named else named.get("default")
        if text is None:
            raise UsageError("The tokenizer has several chat templates, and none of them is named `default`.")
        return text


@dataclass(frozen=True)
class Known:
    """Facts that are known only from the transformers object."""

    digest: str
    vocab_size: int


@dataclass
class ModelTokenizer:
    """A tokenizer, ready to encode."""

    path: str
    words: Words
    make_encoder: Callable[[], Encoder]
    hf: Any = None
    """The transformers object; None if the tokenizer was loaded from a carried file."""
    renders_itself: bool = False
    """Whether the tokenizer's own code renders conversations (Kimi rewrites tools), so that only `hf` can."""
    known: Known | None = None
    """The facts from a carried file, in place of `hf`."""

    @cached_property
    def encoder(self) -> Encoder:
        return self.make_encoder()

    def encode(self, texts: list[str], spans: list[Spans]) -> Encoded:
        """Return ids and mask of each text. The mask is 1 on every token with a character inside the text's spans.

        No special tokens are added, because a chat template writes its own. A token across the edge of a span counts as
        inside, as in transformers' `return_assistant_tokens_mask`.
        """
        return self.encoder.encode(texts, spans)

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`, including special tokens."""
        return self.encoder.decode(ids)

    @cached_property
    def digest(self) -> str:
        """Return the xxh3-128 of everything that decides how text becomes ids."""
        if self.known:
            return self.known.digest
        if self.hf.is_fast:
            return xxhash.xxh3_128_hexdigest(self.hf.backend_tokenizer.to_str().encode())
        vocabulary = sorted(self.hf.get_vocab().items(), key=lambda item: item[1])
        added = sorted((index, str(token)) for index, token in self.hf.added_tokens_decoder.items())
        return xxhash.xxh3_128_hexdigest(json.dumps([type(self.hf).__name__, vocabulary, added]).encode())

    @cached_property
    def vocab_size(self) -> int:
        """The model's embedding rows if its config is beside the tokenizer, else the size of the vocabulary."""
        return self.known.vocab_size if self.known else embedding_rows(self.path) or len(self.hf)


def load(spec: TokenizerSpec) -> ModelTokenizer:
    """Load the tokenizer at `spec.path` with transformers; raise UsageError or HostError with the reason."""
    path = _existing(spec.path)
    if not has_tokenizer(path):
        raise UsageError(
            f"{path} has the model's config but no tokenizer, and the input has conversations to tokenize.",
            remedy="Copy the model's tokenizer files there, or give records with input_ids and loss_mask.",
        )
    from transformers import AutoTokenizer

    # Every worker would print its advice, such as on texts beyond the model's maximum; `prepare` checks lengths itself.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        hf = AutoTokenizer.from_pretrained(path, trust_remote_code=spec.trust_remote_code)
    except Exception as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise HostError(
            f"The tokenizer at {path} could not be loaded: {first_line}",
            remedy=""
            if spec.trust_remote_code
            else "If its folder holds Python code that it needs, add --trust-remote-code.",
        ) from error
    plain = hf.is_fast and _is_transformers_own(hf)
    encoder = FastEncoder(hf.backend_tokenizer) if plain else SlowEncoder(hf)
    return ModelTokenizer(path, _words(hf, path), lambda: encoder, hf, renders_itself=not _renders_as_all_do(hf))


def _existing(path: str) -> str:
    """Return the folder with `~` expanded. A name that does not look like a path is left to transformers."""
    if not path.startswith(("/", "~", ".")):
        return path
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UsageError(
            f"There is no tokenizer at {folder}: no such folder.",
            remedy="Copy the model's tokenizer files (no weights) here and name their folder with --tokenizer.",
        )
    return str(folder)


def has_tokenizer(path: str) -> bool:
    """Return whether `path` may have a tokenizer; False for a folder that has only the model's config."""
    folder = Path(path).expanduser()
    return not (folder / "config.json").is_file() or any((folder / name).is_file() for name in _TOKENIZER_FILES)


def embedding_rows(path: str) -> int | None:
    """Return `vocab_size` of the model's config.json in the folder `path`; None if there is none."""
    config = Path(path).expanduser() / "config.json"
    if not config.is_file():
        return None
    try:
        values = json.loads(config.read_bytes())
    except ValueError as error:
        raise HostError(f"{config} is not JSON: {error}.", remedy="Copy it again from the model.") from error
    return find_number(values, "vocab_size") if isinstance(values, dict) else None


def _is_transformers_own(hf: Any) -> bool:
    """Return whether the tokenizer has no Python class of its own, so that the `tokenizers` backend decides the ids."""
    return type(hf).__module__.startswith("transformers.")


def _renders_as_all_do(hf: Any) -> bool:
    from transformers import PreTrainedTokenizerBase

    return type(hf).apply_chat_template is PreTrainedTokenizerBase.apply_chat_template


def _words(hf: Any, path: str) -> Words:
    specials = {str(token) for token in hf.added_tokens_decoder.values() if token.special} | set(hf.all_special_tokens)
    variables = {name: str(value) for name, value in hf.special_tokens_map.items() if isinstance(value, str)}
    template = hf.chat_template
    return Words(
        chat_template=dict(template) if isinstance(template, dict) else template,
        variables=variables,
        specials=sorted(specials, key=lambda token: (-len(token), token)),
        ends=sorted(_ends(hf, path)),
    )


def _ends(hf: Any, path: str) -> set[str]:
    ends = {hf.eos_token} if hf.eos_token else set()
    config = Path(path) / "generation_config.json"
    if config.is_file():
        ids = json.loads(config.read_text()).get("eos_token_id") or []
        ends |= {hf.convert_ids_to_tokens(token) for token in (ids if isinstance(ids, list) else [ids])}
    return {end for end in ends if end}
