"""The identity of a run: one value, made by `inv plan`, and compared whenever records of the run are read or moved.

The plan, every assignment, a host's ledger, every shard's metadata, a destination's manifest and an export's card have
the identity. The epoch is not a part of it: the epoch, which fences hosts that come back late, increases while the run
stays the same.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Literal

from pydantic import ConfigDict

from remote.shared.errors import OtherRunError
from remote.shared.messages.envelope import Message
from remote.shared.messages.server import FinalNorm
from remote.shared.shard.header import ITEM_BYTES

Dtype = Literal["BF16", "F16", "F32"]
"""The dtype of states, by safetensors' name."""
DTYPES: dict[str, Dtype] = {"bfloat16": "BF16", "float16": "F16", "half": "F16", "float32": "F32", "float": "F32"}
"""The same by the names in a model's `config.json` and in SGLang's `--dtype`."""

Turns = Literal["all", "last"]
"""Which of the assistant's turns the model answers again: all turns, each after its own earlier answers, or the last.
"""
Mark = Literal["length", "empty", "repeating", "refused"]
"""The marks of an answer: cut at the limit of tokens, without text, repeating itself, a refusal."""
TooLong = Literal["keep", "mark", "drop"]

_WORDS = {
    "dataset": "dataset",
    "tokenizer": "tokenizer",
    "model": "model",
    "boundaries": "boundaries",
    "final": "final state",
    "hidden_size": "hidden size",
    "dtype": "dtype",
    "answers": "sampling",
}
"""The words for the fields that decide what the records are."""


class Answering(Message):
    """How the answers of a run are sampled and judged; immutable, a part of the run's identity."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 4096
    stop: tuple[str, ...] = ()
    seed: int = 0
    from_model: tuple[str, ...] = ()
    """The names of settings above that come from the model's `generation_config.json`, because no option set them."""
    samples: int = 1
    """Number of answers to each prompt."""
    turns: Turns = "all"
    last_only: bool = False
    """Whether only the last record of a conversation is kept, if it makes several."""
    too_long: TooLong = "mark"
    """What happens to an answer that was cut at `max_tokens`."""
    drop: tuple[Mark, ...] = ()
    logprobs: bool = False
    """Whether the logprob of each sampled token is kept."""
    template: str = ""
    """xxh3-128 of the chat template's text."""
    template_options: tuple[tuple[str, bool | int | float | str], ...] = ()
    date: str = ""
    """The date that was given to the template, if the template uses one."""

    def __str__(self) -> str:
        values = self.model_dump(exclude_defaults=True, exclude={"template", "from_model"})
        return ", ".join(f"{key} {value}" for key, value in values.items()) or "with SGLang's defaults"


class RunIdentity(Message):
    """A run. Immutable and hashable; two runs are the same if and only if all values are equal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    nonce: str
    """16 random hex digits from planning: a run that is planned again under the same name is another run."""
    dataset: str
    """The digest in the dataset's manifest."""
    tokenizer: str
    """The digest of the dataset's tokenizer."""
    model: str
    """The digest of the model's files (`remote.model_digest`), 32 hex digits."""
    model_path: str
    """The model's folder on the first planned host, for people to read."""
    boundaries: tuple[int, ...]
    """The slots of a record, in order; the last one is n."""
    final: FinalNorm
    hidden_size: int
    dtype: Dtype
    answers: Answering | None = None
    """The settings of a run of answers, which has no boundaries and `hidden_size` 0; None for hidden states."""

    @property
    def folder(self) -> str:
        """The folder of a destination that holds the records."""
        return "hidden_states" if self.answers is None else "answers"

    @property
    def row_bytes(self) -> int:
        """The bytes of one token's hidden states: slots x hidden size x bytes of the dtype."""
        return len(self.boundaries) * self.hidden_size * ITEM_BYTES[self.dtype]

    @property
    def digest(self) -> str:
        """32 hex digits over all fields, which stand for the whole value in small places such as metadata."""
        content = json.dumps(self.model_dump(mode="json", exclude_none=True), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def marks(self) -> dict[str, str]:
        """The safetensors metadata that names this run in each of its shards."""
        return {"run": self.name, "run_digest": self.digest}

    def mismatch(self, metadata: Mapping[str, str]) -> str:
        """Return why a shard with this safetensors metadata does not belong to this run; "" if it does."""
        if all(metadata.get(key) == value for key, value in self.marks.items()):
            return ""
        if "run_digest" not in metadata:
            return f"The file does not name its run, but it should be of the run {self.name!r}."
        return (
            f"The file is of the run {metadata.get('run')!r} with the digest {metadata['run_digest']}, but it should "
            f"be of the run {self.name!r} with {self.digest}."
        )

    def beside(self, other: RunIdentity) -> str:
        """Return this run in words, with every value in which it differs from `other`."""
        values = [
            f"{word} {_text(getattr(self, field))}"
            for field, word in _WORDS.items()
            if getattr(self, field) != getattr(other, field)
        ]
        if self.name == other.name and self.nonce != other.nonce:
            values.append(f"planned as {self.nonce}")
        return f"the run {self.name!r}" + (f" ({'; '.join(values)})" if values else "")


def new_nonce() -> str:
    """Return the nonce of a run that is being planned."""
    return secrets.token_hex(8)


def refuse_other_run(place: str, held: RunIdentity, asked: RunIdentity, remedy: str) -> None:
    """Raise OtherRunError, naming both runs, if `place` holds another run than the requested one."""
    if held != asked:
        raise OtherRunError(f"{place} holds {held.beside(asked)}, not {asked.beside(held)}.", remedy=remedy)


def _text(value: object) -> str:
    return ", ".join(str(part) for part in value) if isinstance(value, tuple) else str(value)
