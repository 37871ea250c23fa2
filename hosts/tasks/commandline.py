"""Turns typed options into a task's arguments: numbers as people write them, and hosts named several times.

Runs on the laptop; `session.roost_task` uses it for every task.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from invoke.parser.argument import Argument
from invoke.tasks import Task

from hosts.errors import UsageError

_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*)?(?:\.\d+)?(?:e[+-]?\d+)?)\s*([kKmMgG]?)", re.IGNORECASE)
_SUFFIX = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
"""Suffixes of numbers, as in vLLM's `--max-model-len`: small letters are decimal, capitals binary."""
_REPEATABLE = ("host", "hosts")


def number(option: str, text: str) -> float:
    """Return the number written in `text`: `4096`, `4_096`, `4k` (4,000), `4K` (4,096), `1.5k`, `1e6`.

    Raises UsageError for anything else.
    """
    found = _NUMBER.fullmatch(text.strip())
    try:
        value = float(found[1].replace("_", "")) * _SUFFIX[found[2]] if found else None
    except ValueError:
        value = None
    if value is None:
        raise UsageError(f"{option} {text!r} is not a number.", remedy="Write 4096, 4k (4,000), 4K (4,096) or 1.5k.")
    return value


def whole(option: str, text: str) -> int:
    """Return the whole number written in `text`; raises UsageError for anything else."""
    value = number(option, text)
    if value != int(value):
        raise UsageError(f"{option} {text!r} is not a whole number.")
    return int(value)


class RoostTask(Task[Any]):
    """A task whose numbers arrive as typed, and whose hosts may be named in several options."""

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Return the arguments; unlike Invoke's own method, a second call finds the help texts again."""
        texts = dict(self.help)
        try:
            return super().get_arguments(ignore_unknown_help)
        finally:
            self.help = texts

    def arg_opts(self, name: str, default: Any, taken_names: set[str]) -> dict[str, Any]:
        """Return Invoke's options for an argument, with the kinds that `as_typed` reads and the default in the help."""
        options: dict[str, Any] = super().arg_opts(name, default, taken_names)
        if default and isinstance(default, str | int | float) and not isinstance(default, bool):
            options["help"] = f"{options.get('help') or ''} (default: {_shown(default)})".lstrip()
        if type(default) in (int, float):
            options["kind"] = str
        elif name in _REPEATABLE:
            options.update(kind=list, default=[])
        elif name == "follow":
            options["names"] = [*options["names"], "f"]
        return options


def _shown(default: str | float) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


def as_typed(body: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the task's arguments, with numbers as values and repeated hosts as one text; raises UsageError."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(body).parameters.items()}
    values = dict(given)
    for name, value in given.items():
        if name in _REPEATABLE and isinstance(value, list):
            values[name] = ",".join(value) if value else None
        elif isinstance(value, str) and type(defaults.get(name)) in (int, float):
            read = whole if type(defaults[name]) is int else number
            values[name] = read(f"--{name.replace('_', '-')}", value)
    return values
