"""What a person typed, made into values: numbers as people write them, repeated hosts, and the nearest right word.

Runs on the laptop. `session.roost_task` uses it for every task, `tasks.py` for the mistakes that Invoke itself finds.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from invoke.exceptions import ParseError
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.program import Program
from invoke.tasks import Task

from hosts.console.output import EXIT_USAGE
from hosts.errors import UsageError, nearest

_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*)?(?:\.\d+)?(?:e[+-]?\d+)?)\s*([kKmMgG]?)", re.IGNORECASE)
_SUFFIX = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
"""As vLLM's `--max-model-len` reads them: small letters are decimal, capitals binary."""
_REPEATABLE = ("host", "hosts")


def number(option: str, text: str) -> float:
    """Return the number that `text` writes: `4096`, `4_096`, `4k` (4,000), `4K` (4,096), `1.5k`, `1e6`.

    Raises UsageError for anything else.
    """
    found = _NUMBER.fullmatch(text.strip())
    try:
        value = float(found[1].replace("_", "")) * _SUFFIX[found[2]] if found else None
    except ValueError:
        value = None
    if value is None:
        raise UsageError(f"{option} {text!r} is no number.", remedy="As in 4096, 4k (4,000), 4K (4,096) or 1.5k.")
    return value


def whole(option: str, text: str) -> int:
    """Return the whole number that `text` writes; raises UsageError if it is none."""
    value = number(option, text)
    if value != int(value):
        raise UsageError(f"{option} {text!r} is no whole number.")
    return int(value)


class RoostTask(Task[Any]):
    """A task whose numbers reach it as they were typed, and whose hosts may be named in several options."""

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Invoke's own, which takes every help text away as it goes; here a second call finds them again."""
        texts = dict(self.help)
        try:
            return super().get_arguments(ignore_unknown_help)
        finally:
            self.help = texts

    def arg_opts(self, name: str, default: Any, taken_names: set[str]) -> dict[str, Any]:
        """Invoke's own options of one argument, with the kinds that `as_typed` turns into values."""
        options: dict[str, Any] = super().arg_opts(name, default, taken_names)
        if type(default) in (int, float):
            options["kind"] = str
        elif name in _REPEATABLE:
            options.update(kind=list, default=[])
        elif name == "follow":
            options["names"] = [*options["names"], "f"]
        return options


def as_typed(body: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the task's arguments with numbers for words and one text for repeated hosts; raises UsageError."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(body).parameters.items()}
    values = dict(given)
    for name, value in given.items():
        if name in _REPEATABLE and isinstance(value, list):
            values[name] = ",".join(value) if value else None
        elif isinstance(value, str) and type(defaults.get(name)) in (int, float):
            read = whole if type(defaults[name]) is int else number
            values[name] = read(f"--{name.replace('_', '-')}", value)
    return values


def explain_mistakes() -> None:
    """Make Invoke say the nearest right word for an unknown task or option, and end with exit code 2.

    Invoke's own answer is `No idea what 'extrct' is!` and exit code 1.
    """
    parse = Program.parse_tasks

    def parse_tasks(self: Program) -> None:
        try:
            _refuse_repeated(self.collection.to_contexts(), self.core.unparsed)
            parse(self)
        except ParseError as error:
            print(f"✗ {_explained(self, error)}", file=sys.stderr)
            sys.exit(EXIT_USAGE)

    Program.parse_tasks = parse_tasks  # type: ignore[method-assign]


def _explained(program: Program, error: ParseError) -> str:
    unknown = re.fullmatch(r"No idea what '(.*)' is!", str(error))
    if unknown is None:
        return str(error)
    word = unknown[1]
    if word.startswith("-") and error.context is not None and error.context.name:
        known = error.context.flags
        hint = nearest(word, known, cutoff=0.6) or f"Its options: inv --help {error.context.name}."
        return f"{error.context.name} has no option {word!r}. {hint}"
    hint = nearest(word, program.collection.task_names) or "All tasks: inv help."
    return f"There is no task {word!r}. {hint}"


def _refuse_repeated(tasks: Sequence[ParserContext], words: Sequence[str]) -> None:
    """Raise ParseError for an option that was given twice and can have one value only."""
    flags_of = {task.name: task.flags for task in tasks}
    flags: dict[str, Any] = {}
    seen: set[str] = set()
    for word in words:
        if word in flags_of and flags_of[word] is not flags:
            flags, seen = flags_of[word], set()
        argument = flags.get(word.partition("=")[0]) if word.startswith("-") else None
        if argument is None or argument.kind in (bool, list):
            continue
        if argument.name in seen:
            raise ParseError(f"--{argument.names[0]} was given twice; give it once.")
        seen.add(argument.name)
