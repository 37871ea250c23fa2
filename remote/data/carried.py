"""A tokenizer as one file: all that the worker processes of `prepare` need of it, without transformers and torch.

Called by `remote.data.prepare`. Importing transformers takes seconds, most of them torch's. So a process of its own
loads the tokenizer, without torch, writes the file and ends, while the sources are read. Tokenizers with code of their
own (Kimi's) cannot be carried: every process loads them with transformers.
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
"""What the workers of `prepare` share."""


def load_carried(spec: TokenizerSpec, target: Path, *, proved: bool) -> tuple[ModelTokenizer, TokenizerSpec]:
    """Return the tokenizer and what workers are told of it; raise UsageError or HostError with the reason.

    `proved` asks for the proof that lets tiktoken encode, which takes a second or two for a vocabulary of real size.
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
    """Read the carried file, if there is one; else load the tokenizer with transformers."""
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
    """Write all that a worker needs; return False if it needs transformers."""
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
