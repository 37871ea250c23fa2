"""A tokenizer as one file, from which worker processes of `prepare` load it without transformers and torch.

Called by `remote.data.prepare`. Importing transformers takes seconds, most of them for torch. Therefore a separate
process loads the tokenizer without torch while the sources are read, writes the file and ends. A tokenizer with its own
code (Kimi's) has no such file: every process loads it with transformers.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from remote.data.encoding import Encoder, FastEncoder
from remote.data.ranked import Ranked, RankedEncoder, prove
from remote.data.tokenizer import Known, ModelTokenizer, TokenizerSpec, Words, load
from remote.shared.files import write_whole
from remote.shared.supervised.processes import process_pool

PRELOAD = ["remote.data.chunk", "remote.data.arrange", "tokenizers"]
"""Modules that the workers of `prepare` share."""


def load_carried(spec: TokenizerSpec, target: Path, *, proved: bool) -> tuple[ModelTokenizer, TokenizerSpec]:
    """Return the tokenizer, and the spec from which workers load it; raise UsageError or HostError with the reason.

    With `proved`, the proof for encoding with tiktoken is attempted; it takes one or two seconds for a large
    vocabulary.
    """
    if "transformers" in sys.modules:
        tokenizer = load(spec)
        is_carried = _write(tokenizer, target, proved)
    else:
        with process_pool(1, preload=PRELOAD, remedy="Run again with more memory free.") as pool:
            is_carried = pool.submit(_load_without_torch, spec, target, proved).result()
    told = replace(spec, carried=str(target)) if is_carried else spec
    return open_tokenizer(told), told


def open_tokenizer(spec: TokenizerSpec) -> ModelTokenizer:
    """Load the tokenizer from the carried file if the spec has one, else with transformers."""
    if not spec.carried:
        return load(spec)
    content = json.loads(Path(spec.carried).read_bytes())
    known = Known(content["digest"], content["vocab_size"])
    encoder = partial(_encoder, content["backend"], content["ranked"])
    return ModelTokenizer(spec.path, Words(**content["words"]), encoder, known=known)


def _encoder(backend: str, ranked: dict[str, Any] | None) -> Encoder:
    return RankedEncoder(Ranked(**ranked), partial(_fast, backend)) if ranked else _fast(backend)


def _fast(backend: str) -> Encoder:
    from tokenizers import Tokenizer

    return FastEncoder(Tokenizer.from_str(backend))


def _load_without_torch(spec: TokenizerSpec, target: Path, proved: bool) -> bool:
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # "PyTorch was not found"
    return _write(load(spec), target, proved)


def _write(tokenizer: ModelTokenizer, target: Path, proved: bool) -> bool:
    """Write the file for the workers; return False if they need transformers."""
    if tokenizer.renders_itself or not isinstance(tokenizer.encoder, FastEncoder):
        return False
    backend = tokenizer.encoder.backend.to_str()
    ranked = prove(backend) if proved else None
    content = {
        "words": asdict(tokenizer.words),
        "digest": tokenizer.digest,
        "vocab_size": tokenizer.vocab_size,
        "backend": backend,
        "ranked": asdict(ranked) if ranked else None,
    }
    write_whole(target, json.dumps(content).encode(), durable=False)
    return True
