"""The command line as a whole: `inv` in a clone and the installed `roost` are one program.

Runs on the laptop. `tasks.py` gives Invoke's own program these manners; `main` is the entry point of `roost`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from hosts.tasks import interrupts

interrupts.leave_at_once()  # the imports below take a second, in which Ctrl-C must work already

from invoke.collection import Collection  # noqa: E402
from invoke.exceptions import Exit, ParseError  # noqa: E402
from invoke.parser.context import ParserContext  # noqa: E402
from invoke.program import Program  # noqa: E402

from hosts.console.output import EXIT_USAGE, leave_without_reader  # noqa: E402
from hosts.console.text import as_spoken, speak_of, write_to_any_terminal  # noqa: E402
from hosts.errors import nearest  # noqa: E402
from hosts.tasks import completion  # noqa: E402
from hosts.tasks.overview import collection  # noqa: E402

_HELP = ("--help", "-h")


class RoostProgram(Program):
    """Invoke's program: mistakes are explained with exit code 2, and completion knows hosts, groups, modes and runs."""

    def parse_tasks(self) -> None:
        """Parse the tasks and their options; a mistake ends the process with one sentence.

        Invoke's own answer is `No idea what 'extrct' is!` and exit code 1.
        """
        words = self.core.unparsed
        try:
            _refuse_repeated(self.collection.to_contexts(), words)
            super().parse_tasks()
        except ParseError as error:
            self._explain(error)
        self._help_of_last(words)

    def parse_cleanup(self) -> None:
        """Answer `--help`, `--list` and `--complete`; an unknown name after `--help` is explained as well."""
        if self.args.complete.value and (values := completion.values(self.core.remainder, self.collection)):
            print("\n".join(values))
            raise Exit
        try:
            super().parse_cleanup()
        except ParseError as error:
            self._explain(error)
        except BrokenPipeError:
            leave_without_reader()

    def _help_of_last(self, words: Sequence[str]) -> None:
        """Print a task's help for `TASK --help` if the task's first argument would take `--help` as its value."""
        if len(words) == 2 and words[1] in _HELP and self.tasks and self.tasks[-1].positional_args:
            self.print_task_help(words[0])
            raise Exit

    def _explain(self, error: ParseError) -> NoReturn:
        print(f"✗ {_explained(self.collection, error)}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def prepared() -> Collection:
    """Return every task, and make this process's output and command line Roost's own."""
    tasks = collection()
    write_to_any_terminal()
    return tasks


def main() -> None:
    """Run `roost`."""
    tasks = prepared()
    speak_of("roost", tasks.task_names)
    for task in tasks.tasks.values():
        task.__doc__ = as_spoken(task.__doc__ or "")
    RoostProgram(
        name="Roost", binary="roost", binary_names=["roost"], version=version("roost-fleet"), namespace=tasks
    ).run()


def _explained(tasks: Collection, error: ParseError) -> str:
    unknown = re.fullmatch(r"No idea what '(.*)' is!", str(error))
    if unknown is None:
        return str(error)
    word = unknown[1]
    if word.startswith("-") and error.context is not None and error.context.name:
        known = error.context.flags
        hint = nearest(word, known, cutoff=0.6) or f"Its options: inv --help {error.context.name}."
        return f"{error.context.name} has no option {word!r}. {hint}"
    hint = nearest(word, tasks.task_names) or "All tasks: inv help."
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
