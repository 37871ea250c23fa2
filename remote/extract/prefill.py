"""The request whose forward pass is captured: a whole record, and one generated token, which is not used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remote.work.client import Answer, Client

_SAMPLING = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
_LOGPROBS = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}


async def prefill(client: Client, rid: str, tokens: NDArray[np.int32], *, logprobs: bool) -> Answer:
    """Prefill one record under the request id `rid`; with `logprobs`, ask for input logprobs from position 0."""
    more: dict[str, Any] = _LOGPROBS if logprobs else {}
    return await client.generate(rid, tokens, _SAMPLING, more)
