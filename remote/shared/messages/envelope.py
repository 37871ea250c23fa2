"""What wraps every exchange: one JSON line in, JSON lines out.

Out come a `Hello`, any number of `Progress` and `Item` lines, then exactly one `Result` or `Failure`.
Lines before the `Hello` with the caller's nonce (a `.bashrc` that prints) are noise.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

BEAT_SECONDS = 5.0


class Message(BaseModel):
    """Base of everything that travels: unknown keys are an error, so a mistyped field never passes silently."""

    # Validators are built when a message is first used: a verb uses three of some hundred, and building them all was
    # a fifth of the CPU time of a short call.
    model_config = ConfigDict(extra="forbid", defer_build=True)


class Call(Message):
    """The one line that a verb reads from stdin."""

    verb: str
    request: dict[str, Any] = Field(default_factory=dict)
    workdir: str
    """The host's working directory; `~` is the home directory of the user over there."""
    tethered: bool = False
    """End the verb when stdin closes (the laptop is gone and nobody reads on), and send beats until then."""
    operator: str = ""
    """Who types, as `user@laptop`: shown to a second operator by the host's lock."""


class Hello(Message):
    """First line of an answer: the payload is there and this Python runs it."""

    type: Literal["hello"] = "hello"
    nonce: str
    python: str
    have_payload: bool


class Progress(Message):
    """A sentence for the person who waits, and optionally how far along."""

    type: Literal["progress"] = "progress"
    text: str
    done: float | None = None
    total: float | None = None
    unit: str = ""


class Beat(Message):
    """Nothing to say yet, still there: sent every `BEAT_SECONDS`, so that silence means a lost connection."""

    type: Literal["beat"] = "beat"


class Item(Message):
    """One row of a streamed answer (a log line, a ledger row)."""

    type: Literal["item"] = "item"
    value: dict[str, Any]


class Result(Message):
    """The verb's whole answer."""

    type: Literal["result"] = "result"
    value: dict[str, Any]


class Failure(Message):
    """The verb's error, for `RoostError.message`, `.remedy`, `.kind` and `.details`."""

    type: Literal["error"] = "error"
    kind: str
    message: str
    remedy: str = ""
    details: dict[str, Any] = Field(default_factory=dict)


Line = Annotated[Hello | Beat | Progress | Item | Result | Failure, Field(discriminator="type")]
LINE: TypeAdapter[Line] = TypeAdapter(Line, config=ConfigDict(defer_build=True))
