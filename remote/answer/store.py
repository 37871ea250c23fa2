"""Writes an answered conversation as a file: `shards/hs_{i}.safetensors`, atomically, with the marks of its run.

    offset      I64 [k+1]  where each of the k training records begins
    input_ids   I32 [R]    their ids: prompts as they were sent, answers as they were sampled
    logprobs    F32 [S]    of the sampled tokens, turn by turn; only if they were asked for
    loss_mask   U8 [R]     1 on sampled tokens
    account     U8 [n]     `remote.shared.messages.answers.Account` as JSON

Written on the host in the answerer's threads; read by `prepare` and `inspect` after a pull.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from remote.answer.conversation import Conversation
from remote.answer.quality import judged, marks_of
from remote.answer.speaker import Speaker
from remote.shared.files import written_aside
from remote.shared.messages.answers import Account, AnswerSummary, Turn
from remote.shared.messages.run import Mark, RunIdentity
from remote.shared.shard import header
from remote.shared.shard.header import TensorSpec


@dataclass(frozen=True)
class Stored:
    """A complete and durable file on disk."""

    summary: AnswerSummary
    rows: int
    size_bytes: int
    xxh3: str


def store(path: Path, conversation: Conversation, identity: RunIdentity) -> Stored:
    """Judge a conversation and write it; raises OSError if the disk fails."""
    assert identity.answers is not None
    made = conversation.rows()
    kept = made[-1:] if identity.answers.last_only else made
    turns = [_turn(conversation.speaker, number, conversation) for number in range(len(conversation.turns))]
    every = [mark for mark in ("length", "empty", "repeating", "refused") if any(mark in turn.marks for turn in turns)]
    marks, dropped = judged(_typed(every), identity.answers)
    summary = AnswerSummary(
        prompt=sum(len(ids) for ids, _ in made) - sum(int(mask.sum()) for _, mask in made),
        answer=sum(turn.answer for turn in turns),
        turns=len(turns),
        finish={kind: sum(turn.finish == kind for turn in turns) for kind in sorted({turn.finish for turn in turns})},
        marks=marks,
        dropped=dropped,
        changed=any(conversation.speaker.changed(ids) for ids, _ in kept),
        rows=len(kept),
        ended=conversation.ended,
    )
    account = Account(turns=turns, summary=summary, seed=conversation.turns[0].sampled.seed)
    content = _content(kept, conversation, account, identity)
    with written_aside(path) as aside:
        aside.write_bytes(content)
    return Stored(summary, sum(len(ids) for ids, _ in kept), len(content), xxhash.xxh3_128_hexdigest(content))


def _typed(marks: list[str]) -> list[Mark]:
    return marks  # type: ignore[return-value]


def _turn(speaker: Speaker, number: int, conversation: Conversation) -> Turn:
    turn = conversation.turns[number]
    text = speaker.text_of(turn.sampled.ids)
    return Turn(
        prompt=len(turn.prompt.ids),
        answer=len(turn.sampled.ids),
        finish=turn.sampled.finish,
        matched=turn.sampled.matched,
        text=text,
        cached=turn.sampled.cached,
        marks=marks_of(turn.sampled.ids, text, turn.sampled.finish),
    )


def _content(
    rows: list[tuple[np.ndarray, np.ndarray]], conversation: Conversation, account: Account, identity: RunIdentity
) -> bytes:
    offset = np.cumsum([0, *(len(ids) for ids, _ in rows)], dtype=np.int64)
    arrays: list[tuple[str, str, np.ndarray]] = [
        ("offset", "I64", offset),
        ("input_ids", "I32", np.concatenate([ids for ids, _ in rows]).astype(np.int32)),
    ]
    logprobs = [turn.sampled.logprobs for turn in conversation.turns if turn.sampled.logprobs is not None]
    if logprobs:
        arrays.append(("logprobs", "F32", np.concatenate(logprobs)))
    arrays.append(("loss_mask", "U8", np.concatenate([mask for _, mask in rows])))
    arrays.append(("account", "U8", np.frombuffer(account.model_dump_json().encode(), np.uint8)))
    head = header.write([TensorSpec(name, dtype, array.shape) for name, dtype, array in arrays], identity.marks)
    return head + b"".join(array.tobytes() for _, _, array in arrays)
