"""The lines of every exchange: one JSON line in, JSON lines out.

A verb answers with a `Hello`, any number of `Progress` and `Item` lines, and exactly one `Result` or `Failure`. Lines
before the `Hello` with the caller's nonce are noise, for example from a `.bashrc` that prints.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

BEAT_SECONDS = 5.0


class Message(BaseModel):
    """The base of everything that travels: unknown keys are errors, so a mistyped field never passes silently."""

    # Validators are built when a message is first used. A verb uses three of about a hundred messages, and building all
    # validators took a fifth of the CPU time of a short call.
    model_config = ConfigDict(extra="forbid", defer_build=True)


class Typed(Message):
    """One command as a person typed it. Every call of the command carries it, for the hosts' trails."""

    id: str = ""
    """The command's id, the same on the laptop and on all hosts; "" for a command that changes nothing."""
    words: str = ""
    """The task and its options, without secrets."""


class Call(Message):
    """The one line that a verb reads from stdin."""

    verb: str
    request: dict[str, Any] = Field(default_factory=dict)
    workdir: str
    """The host's working directory; `~` is the home directory of the user on the host."""
    tethered: bool = False
    """Send beats, and end the verb when stdin closes, because then the laptop is gone."""
    operator: str = ""
    """The operator as `user@laptop`; the host's lock shows it to a second operator."""
    typed: Typed = Field(default_factory=Typed)


class Hello(Message):
    """The first line of an answer: the payload is there and this Python runs it."""

    type: Literal["hello"] = "hello"
    nonce: str
    python: str
    have_payload: bool


class Progress(Message):
    """A sentence for the waiting person, optionally with how far the work has come."""

    type: Literal["progress"] = "progress"
    text: str
    done: float | None = None
    total: float | None = None
    unit: str = ""


class Beat(Message):
    """A sign of life, sent every `BEAT_SECONDS`, so that silence means a lost connection."""

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
    """The verb's error, with the fields of a RoostError."""

    type: Literal["error"] = "error"
    kind: str
    message: str
    remedy: str = ""
    details: dict[str, Any] = Field(default_factory=dict)


Line = Annotated[Hello | Beat | Progress | Item | Result | Failure, Field(discriminator="type")]
LINE: TypeAdapter[Line] = TypeAdapter(Line, config=ConfigDict(defer_build=True))


def first_problem(error: ValidationError) -> str:
    """Return the place and the kind of a message's first error, never a value, which may be a secret."""
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
