"""What a run is: one value, made once by `inv plan`, and compared wherever records of the run are given or taken.

The plan, every assignment, a host's ledger, every shard's own metadata, a destination's manifest and an export's card
carry it. The epoch is no part of it: it fences hosts that come back late, and rises while the run stays the same.
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
"""Of states, as safetensors names it."""

_WORDS = {
    "dataset": "dataset",
    "tokenizer": "tokenizer",
    "model": "model",
    "boundaries": "boundaries",
    "final": "final state",
    "hidden_size": "hidden size",
    "dtype": "dtype",
}
"""The fields that decide what the records are, as a person calls them."""


class RunIdentity(Message):
    """A run. Immutable and hashable; two runs are the same if, and only if, the values are equal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    nonce: str
    """16 hex digits, drawn when the run was planned: a run that is planned anew under the same name is another run."""
    dataset: str
    """Digest from the dataset's manifest."""
    tokenizer: str
    """Digest of the dataset's tokenizer."""
    model: str
    """Digest of the model's files (`remote.data.model_digest`), 32 hex digits."""
    model_path: str
    """The model's folder on the first planned host, for a person."""
    boundaries: tuple[int, ...]
    """The slots of a record, in order; the last one is n."""
    final: FinalNorm
    hidden_size: int
    dtype: Dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's hidden states: slots x hidden size x bytes of the dtype."""
        return len(self.boundaries) * self.hidden_size * ITEM_BYTES[self.dtype]

    @property
    def digest(self) -> str:
        """32 hex digits over all fields: what stands for the whole value where there is little room."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def marks(self) -> dict[str, str]:
        """What a shard of this run says in its own safetensors metadata."""
        return {"run": self.name, "run_digest": self.digest}

    def mismatch(self, metadata: Mapping[str, str]) -> str:
        """Why a shard with this safetensors metadata is not one of this run; "" if it is one."""
        if all(metadata.get(key) == value for key, value in self.marks.items()):
            return ""
        if "run_digest" not in metadata:
            return f"The file does not say of which run it is, and this is the run {self.name!r}."
        return (
            f"The file is of the run {metadata.get('run')!r} with the digest {metadata['run_digest']}, and this is the "
            f"run {self.name!r} with {self.digest}."
        )

    def beside(self, other: RunIdentity) -> str:
        """This run in words, with every value in which it differs from `other`."""
        values = [
            f"{word} {_text(getattr(self, field))}"
            for field, word in _WORDS.items()
            if getattr(self, field) != getattr(other, field)
        ]
        if self.name == other.name and self.nonce != other.nonce:
            values.append(f"planned as {self.nonce}")
        return f"the run {self.name!r}" + (f" ({'; '.join(values)})" if values else "")


def new_nonce() -> str:
    """The nonce of a run that is being planned."""
    return secrets.token_hex(8)


def refuse_other_run(place: str, held: RunIdentity, asked: RunIdentity, remedy: str) -> None:
    """Raise OtherRunError if `place` holds another run than the one that was asked for; the sentence names both."""
    if held != asked:
        raise OtherRunError(f"{place} holds {held.beside(asked)}, not {asked.beside(held)}.", remedy=remedy)


def _text(value: object) -> str:
    return ", ".join(str(part) for part in value) if isinstance(value, tuple) else str(value)
