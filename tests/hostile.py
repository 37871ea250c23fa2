"""What a hostile or broken other end could send: strategies for hypothesis, the same examples at every run.

Used by the laptop's tests and by the hosts' ones; imports neither side. Messages are made by a random generator from
one drawn seed: field by field they would take hypothesis itself twenty times as long.
"""

from __future__ import annotations

import random
import types
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError


def examples(count: int) -> settings:
    """So many examples, the same for everybody since the test itself decides; a failure says how to repeat it."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
    )


ESCAPES = (
    "\x1b[2J\x1b[H",
    "\x1b]0;owned\x07",
    "\x1b]8;;file:///etc/passwd\x07click\x1b]8;;\x07",
    "\x1bP+q544e\x1b\\",
    "\x9b31m",
    "a\rb",
    "\b\b\b",
    "\u202egnp.exe",
    "\u2066\u2069",
    "[red]not markup[/red]",
    "[link=file:///etc/passwd]x[/link]",
    "[/]",
    "ends in \\",
    ":boom:",
    "../../../../etc/passwd",
    "/etc/passwd",
    "%s%n{0}{x}",
    "\x00",
    "\n",
    "x" * 500,
)
texts = st.one_of(st.sampled_from(ESCAPES), st.text(max_size=30))
floats = st.one_of(st.floats(), st.sampled_from([1e300, -1e300, float("nan"), float("inf"), -0.0]))
ints = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-2, 40), st.just((1 << 63) - 1))
seeds = st.integers(0, (1 << 32) - 1)

M = TypeVar("M", bound=BaseModel)
FLOATS = (0.0, 1.5, -1.0, 1e300, -1e300, float("nan"), float("inf"), float("-inf"), -0.0)
INTS = (0, 1, 2, 40, -1, 1 << 40, (1 << 63) - 1, -(1 << 63))


def json_values() -> st.SearchStrategy[Any]:
    """Anything that JSON can say, and integers and floats that it should not."""
    return seeds.map(lambda seed: Maker(seed).anything())


def json_objects() -> st.SearchStrategy[dict[str, Any]]:
    """The same, as objects."""
    return seeds.map(lambda seed: Maker(seed).of(dict[str, Any]))


def objects_like(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with a message's keys, each of the right kind and with any value; often one of a wrong kind."""
    return seeds.map(lambda seed: Maker(seed).object_like(model))


def values_of(model: type[M]) -> st.SearchStrategy[M]:
    """Valid instances of a message with extreme values in every field."""
    return seeds.map(lambda seed: Maker(seed).valid(model))


class Maker:
    """Makes values of a type from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        """An attack, or any characters."""
        if self.random.random() < 0.5:
            return self.random.choice(ESCAPES)
        points = (self.random.choice((32, 128, 0x3000, 0x11000)) for _ in range(self.random.randrange(12)))
        return "".join(chr(self.random.randrange(point)) for point in points)

    def anything(self, depth: int = 0) -> Any:
        """A JSON value."""
        kind = self.random.randrange(7 if depth < 4 else 5)
        if kind < 5:
            return self.of((type(None), bool, int, float, str)[kind])
        count = self.random.randrange(4)
        if kind == 5:
            return [self.anything(depth + 1) for _ in range(count)]
        return {self.text(): self.anything(depth + 1) for _ in range(count)}

    def object_like(self, model: type[BaseModel]) -> dict[str, Any]:
        """The keys of `model`, in half of the cases one with a value of any kind, or one more."""
        value = {name: self.of(field.annotation) for name, field in model.model_fields.items()}
        if self.random.random() < 0.5:
            value[self.random.choice([*model.model_fields, "more"])] = self.anything()
        return value

    def valid(self, model: type[M]) -> M:
        """An instance: made until its own validation is content."""
        while True:
            try:
                return model.model_validate(
                    {name: self.of(field.annotation) for name, field in model.model_fields.items()}
                )
            except ValidationError:
                continue

    def of(self, kind: Any) -> Any:
        """A value of a type as a message's field names it."""
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self.of(inner[0])
        if origin in (Union, types.UnionType):
            return self.of(self.random.choice(inner))
        if origin is Literal:
            return self.random.choice(inner)
        if origin is list:
            return [self.of(inner[0]) for _ in range(self.random.randrange(3))]
        if origin is tuple and inner[-1] is Ellipsis:
            return tuple(self.of(inner[0]) for _ in range(self.random.randrange(3)))
        if origin is tuple:
            return [self.of(one) for one in inner]
        if origin is dict:
            return {self.of(inner[0]): self.of(inner[1]) for _ in range(self.random.randrange(3))}
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return {name: self.of(field.annotation) for name, field in kind.model_fields.items()}
        return self._plain(kind)

    def _plain(self, kind: Any) -> Any:
        if kind is str:
            return self.text()
        if kind is bool:
            return self.random.random() < 0.5
        if isinstance(kind, type) and issubclass(kind, int):
            return self.random.choice(INTS) if self.random.random() < 0.5 else self.random.randrange(100)
        if kind is float:
            return self.random.choice(FLOATS) if self.random.random() < 0.5 else self.random.uniform(0, 100)
        if kind is type(None):
            return None
        if kind in (Any, object):
            return self.anything()
        raise NotImplementedError(f"{kind!r}")
