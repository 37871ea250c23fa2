"""Compares a record's final slot with the server's own log-probabilities, row by row. Host side, in the collector.

The captured request also asks for input logprobs from position 0, so both come from the same forward pass. Row i,
normed and multiplied by the head, must give the server's log-probability of the token that follows it. This finds a
wrong boundary or norm, and shifted, zeroed, stale and foreign rows, but nothing in the auxiliary slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

_ROWS_AT_ONCE = 256
_ULP = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
_ALLOWED_ULPS = {torch.float32: 512.0, torch.bfloat16: 6.0, torch.float16: 6.0}
"""The tolerance in ULPs of a row's largest logit: Roost's and the server's logits are rounded to the model's dtype
independently. In float32, the order of summation matters instead."""
_FLOOR = 1e-4


@dataclass(frozen=True)
class LogprobParity:
    """The differences between a record's rows and the server's answer, in nats."""

    rows: int
    """The number of compared rows: all, or all except the last if the server's next token is unknown."""
    mean_error: float
    max_error: float
    worst_row: int
    excess: float
    """The largest error relative to its row's tolerance; the record passes up to 1."""
    top1: float | None
    """The share of rows whose most likely token is the server's; None if the server was not asked."""

    @property
    def passed(self) -> bool:
        return self.excess <= 1.0

    def __str__(self) -> str:
        return (
            f"Row {self.worst_row} of the final slot gives a log-probability {self.max_error:.3g} away from the"
            f" server's ({self.excess:.1f} times what rounding explains)"
        )

    def row(self) -> dict[str, Any]:
        """Return plain numbers for the ledger."""
        return asdict(self)


@dataclass(frozen=True)
class ServerLogprobs:
    """The server's answer: entry i belongs to row i and is about the token that follows it."""

    logprobs: list[float]
    next_ids: list[int]
    top_ids: list[int] | None

    @classmethod
    def of_answer(cls, meta: dict[str, Any]) -> ServerLogprobs:
        """Parse `meta_info` of a `/generate` answer (`return_logprob`, `logprob_start_len` 0); raises ValueError."""
        try:
            pairs = [*meta["input_token_logprobs"][1:], *meta["output_token_logprobs"][:1]]
            top = None
            if meta.get("input_top_logprobs"):
                best = [*meta["input_top_logprobs"][1:], *meta["output_top_logprobs"][:1]]
                top = [int(row[0][1]) for row in best]
            return cls([float(pair[0]) for pair in pairs], [int(pair[1]) for pair in pairs], top)
        except (LookupError, TypeError, OverflowError) as error:
            raise ValueError(f"the server's answer has no input logprobs: {type(error).__name__} {error}") from error


@dataclass(frozen=True)
class Deviations:
    """The differences of every compared row, float32 [rows]."""

    errors: torch.Tensor
    """The distance of the log-probabilities, in nats."""
    allowed: torch.Tensor
    """The distance that rounding explains."""
    agreeing: int | None
    """The number of rows whose most likely token is the server's; None if the server was not asked."""

    def summary(self) -> LogprobParity:
        """Return one judgement of all rows: the row with the largest excess decides."""
        excess = (self.errors / self.allowed.nan_to_num(_FLOOR, posinf=_FLOOR)).nan_to_num(torch.inf)
        worst = int(excess.argmax())
        return LogprobParity(
            rows=len(self.errors),
            mean_error=float(self.errors.mean()),
            max_error=float(self.errors[worst]),
            worst_row=worst,
            excess=float(excess[worst]),
            top1=self.agreeing / len(self.errors) if self.agreeing is not None else None,
        )


@torch.no_grad()
def deviations(
    shard_rows: torch.Tensor,
    token_ids: Sequence[int],
    answered: ServerLogprobs,
    norm_weight: torch.Tensor,
    eps: float,
    lm_head: torch.Tensor,
    dtype: torch.dtype,
    *,
    final: Literal["pre", "post"] = "pre",
) -> Deviations:
    """Compare the final slot [rows, hidden] with the server's answer; `post` rows are normed already.

    Raises ValueError if the answer is about other tokens or another number of rows.
    """
    rows = len(answered.logprobs)
    if len(token_ids) != len(shard_rows) or rows not in (len(token_ids), len(token_ids) - 1):
        raise ValueError(f"{len(shard_rows)} rows, {len(token_ids)} tokens and {rows} logprobs do not belong together")
    following = _following(token_ids, answered, len(lm_head))
    errors, allowed, agree = [], [], 0
    for start in range(0, rows, _ROWS_AT_ONCE):
        block = slice(start, min(start + _ROWS_AT_ONCE, rows))
        normed = shard_rows[block] if final == "post" else rms_norm(shard_rows[block], norm_weight, eps, dtype)
        logits = (normed.to(dtype) @ lm_head.to(dtype).T).float()
        ids = torch.tensor(following[block])
        found = torch.log_softmax(logits, dim=-1).gather(1, ids[:, None])[:, 0]
        errors.append((found - torch.tensor(answered.logprobs[block])).abs().nan_to_num(torch.inf))
        allowed.append(logits.abs().amax(dim=-1) * _ULP[dtype] * _ALLOWED_ULPS[dtype] + _FLOOR)
        if answered.top_ids is not None:
            agree += int((logits.argmax(dim=-1) == torch.tensor(answered.top_ids[block])).sum())
    return Deviations(torch.cat(errors), torch.cat(allowed), agree if answered.top_ids is not None else None)


def _following(token_ids: Sequence[int], answered: ServerLogprobs, vocabulary: int) -> list[int]:
    """Return the token after each row. SGLang reports the vocabulary's last token as 0, with the right logprob."""
    following = [*token_ids[1:], *answered.next_ids[len(token_ids) - 1 :]]
    strange = [token for token in (*following, *(answered.top_ids or [])) if not 0 <= token < vocabulary]
    if strange:
        raise ValueError(f"the server names token {strange[0]!r:.30}, but the vocabulary has {vocabulary}")
    if answered.top_ids is not None and len(answered.top_ids) != len(answered.logprobs):
        raise ValueError(f"{len(answered.top_ids)} best tokens and {len(answered.logprobs)} logprobs do not match")
    named = [0 if token == vocabulary - 1 else token for token in following[: len(token_ids) - 1]]
    for row, (said, token, plain) in enumerate(zip(answered.next_ids, named, following, strict=False)):
        if said not in (token, plain):
            raise ValueError(f"the server's logprob of row {row} is about token {said}, but {plain} was sent")
    return following


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """Return RMSNorm of the rows, computed in float32 and rounded to `dtype` at the end, as SGLang's kernels do."""
    wide = rows.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(dtype)
