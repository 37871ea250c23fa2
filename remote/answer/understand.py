"""Builds the request of a turn for SGLang, and reads SGLang's answer. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from remote.answer.conversation import Sampled
from remote.shared.messages.run import Answering
from remote.work.client import Answer
from remote.work.failures import AttemptError


def sampling_params(settings: Answering, most: int, seed: int) -> dict[str, Any]:
    """Return SGLang's `sampling_params`. Text is never trimmed, because only the ids are used."""
    return {
        "max_new_tokens": most,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "min_p": settings.min_p,
        "presence_penalty": settings.presence_penalty,
        "repetition_penalty": settings.repetition_penalty,
        "sampling_seed": seed,
        **({"stop": list(settings.stop)} if settings.stop else {}),
    }


def sampled_of(answer: Answer, sampling: dict[str, Any], settings: Answering, seed: int) -> Sampled:
    """Return the sampled ids; raises AttemptError if the answer does not account for every id."""
    try:
        ids, meta = answer.said["output_ids"], answer.meta
        reason = meta["finish_reason"]
        kind, count = reason["type"], meta["completion_tokens"]
        cached = int(meta.get("cached_tokens") or 0)
    except (KeyError, TypeError) as error:
        raise AttemptError(f"The server's answer lacks {error!s:.60}.") from error
    most = sampling["max_new_tokens"]
    whole = isinstance(ids, list) and all(type(one) is int and 0 <= one < 1 << 31 for one in ids)
    if not whole or not 0 < len(ids) <= most or len(ids) != count or kind not in ("stop", "length"):
        raise AttemptError(
            f"The server's answer contradicts itself: it has {len(ids) if whole else 'no'} ids, names {count!r:.20} of "
            f"at most {most}, and was finished by {kind!r:.40}."
        )
    matched = reason.get("matched")
    return Sampled(
        ids=np.array(ids, np.int32),
        finish=str(kind),
        matched=matched if isinstance(matched, int | str) else None,
        cached=cached,
        logprobs=_logprobs(meta, ids) if settings.logprobs else None,
        seed=seed,
    )


def _logprobs(meta: dict[str, Any], ids: list[int]) -> np.ndarray:
    try:
        pairs = [(float(one[0]), one[1]) for one in meta["output_token_logprobs"]]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise AttemptError(f"The server's logprobs cannot be read ({error!r:.60}).") from error
    if [token for _, token in pairs] != ids:
        raise AttemptError("The server's logprobs belong to other tokens than its sampled ids.")
    return np.array([value for value, _ in pairs], np.float32)
