"""Prints everything that tasks print: text and tables on a terminal, one JSON document with `--json`.

Results go to stdout; progress, notes and errors go to stderr, so that a pipe gets only results.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hosts.console.text import as_spoken, printable, sentence
from hosts.errors import RoostError, UsageError
from hosts.fleet import Outcome

T = TypeVar("T", bound=BaseModel)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2


_GAP = 2
"""The number of spaces that rich puts between the columns of a table without lines."""
PIPED_COLUMNS = 200
"""The width of tables in characters if the output is not a terminal."""


def new_console(stderr: bool = False) -> Console:
    """Return a console that never breaks a line of text and makes tables wide when piped."""
    console = Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=True)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_COLUMNS
    return console


class Output:
    """Prints a task's results to stdout, and notes and errors to stderr."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.out = new_console()
        self.err = new_console(stderr=True)
        self._told: set[str] = set()
        self.detached = ""
        """What keeps running after Ctrl-C, in the message's words: `the extraction of run 'a' on gpu1, gpu2`."""

    def flush(self) -> None:
        """Write out everything printed so far; raises BrokenPipeError if the reader is gone."""
        self.out.file.flush()

    @contextmanager
    def captured(self) -> Iterator[Callable[[], str]]:
        """Keep the block's results and notes instead of printing them; the yielded function returns them."""
        kept = io.StringIO()
        console = Console(
            file=kept, highlight=False, emoji=False, soft_wrap=True, force_terminal=True, width=self.out.width
        )
        before = self.out, self.err
        self.out = self.err = console
        try:
            yield kept.getvalue
        finally:
            self.out, self.err = before

    def note(self, text: str) -> None:
        """Print a note on stderr; silent with `--json`."""
        if not self.as_json:
            self.err.print(sentence(text), markup=False)

    def line(self, text: str) -> None:
        """Print lines of a result; silent with `--json`, whose document has the same facts."""
        if not self.as_json:
            for line in text.splitlines():
                self.out.print(sentence(line), markup=False)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "", drop: Sequence[str] = ()
    ) -> None:
        """Print a table of plain values; numbers are right-aligned.

        If the terminal is too narrow, the columns in `drop` are left out, the first one first, and a note says so.
        """
        if self.as_json:
            return
        columns, rows, lacking = _fitting(columns, rows, self.out.width, drop)
        table = Table(
            title=Text(printable(title), "italic") if title else None,
            title_justify="left",
            box=None,
            pad_edge=False,
            header_style="bold",
        )
        for number, column in enumerate(columns):
            numeric = bool(rows) and all(isinstance(row[number], int | float) for row in rows)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(_cell(cell))) for cell in row))
        self.out.print(table)
        if lacking:
            self.note(f"Columns left out at this width: {', '.join(lacking)} (a wider terminal or --json shows them).")

    def document(self, value: Any) -> None:
        """Print the `--json` document; does nothing without `--json`."""
        if self.as_json:
            self.out.file.write(json.dumps(value, indent=2, sort_keys=False) + "\n")

    def error(self, error: RoostError, host: str = "") -> None:
        """Print an error after its host's name: one sentence, the remedy, and the log lines that come with it.

        An error that was printed already is not repeated (an unreachable host is reported at once).
        """
        words = f"{host}: {error.message}" if host else error.message
        if self.as_json or words in self._told:
            return
        self._told.add(words)
        where = (f"{host}: ", "bold") if host else ""
        remedy = f"\n    {sentence(error.remedy)}" if error.remedy else ""
        self.err.print(Text.assemble(("✗ ", "red"), where, sentence(error.message), remedy))
        lines = error.details.get("lines", [])
        for line in lines if isinstance(lines, list) else []:
            self.err.print(Text(f"    │ {printable(str(line))}", "dim"))

    def outcomes(
        self,
        outcomes: Sequence[Outcome[T]],
        line: Callable[[T], str] | None = None,
        failed: Callable[[T], bool] | None = None,
        *,
        amiss: str = "",
        details: Callable[[], None] | None = None,
    ) -> int:
        """Print a `line` for each host, then `details`, then which hosts failed; or the JSON document.

        Returns the exit code. `failed` tells whether a result makes the exit code 1 without being an error (a red
        finding, a process left over); `amiss` is the phrase for such hosts, if Roost itself did not fail there.
        """
        wrong = [outcome for outcome in outcomes if outcome.ok and failed is not None and failed(outcome.result)]
        errors = [outcome for outcome in outcomes if not outcome.ok]
        self.document({"hosts": {outcome.host.name: as_document(outcome) for outcome in outcomes}})
        for outcome in outcomes:
            if outcome.error is not None:
                self.error(outcome.error, outcome.host.name)
            elif line is not None and not self.as_json:
                mark = ("! ", "yellow") if outcome in wrong else ("✓ ", "green")
                name = (f"{outcome.host.name}: ", "bold")
                self.out.print(Text.assemble(mark, name, sentence(line(outcome.result))))
        if details is not None:
            details()
        if len(outcomes) > 1:
            total = f"of {len(outcomes)} hosts"
            if failures := errors if amiss else errors + wrong:
                self.note(f"{len(failures)} {total} failed: {_names(failures)}.")
            if amiss and wrong:
                self.note(f"{len(wrong)} {total} ({_names(wrong)}): {amiss}.")
        return EXIT_FAILED if wrong else exit_code(outcomes)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _fitting(
    columns: Sequence[str], rows: Sequence[Sequence[object]], width: int, drop: Sequence[str]
) -> tuple[Sequence[str], Sequence[Sequence[object]], list[str]]:
    """Return the table without as many columns of `drop` as the width requires, and the names of those columns."""
    widths = {
        name: max([cell_len(name), *(cell_len(printable(_cell(row[number]))) for row in rows)])
        for number, name in enumerate(columns)
    }
    lacking: list[str] = []
    for name in drop:
        if sum(widths.values()) + _GAP * (len(widths) - 1) <= width:
            break
        del widths[name]
        lacking.append(name)
    kept = [number for number, name in enumerate(columns) if name in widths]
    return [columns[number] for number in kept], [[row[number] for number in kept] for row in rows], lacking


def _names(outcomes: Sequence[Outcome[Any]]) -> str:
    return ", ".join(outcome.host.name for outcome in outcomes)


def exit_code(outcomes: Sequence[Outcome[Any]]) -> int:
    """Return 0 if every host succeeded, 2 if every host refused the request as wrong usage, else 1."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if errors and len(errors) == len(outcomes) and all(isinstance(error, UsageError) for error in errors):
        return EXIT_USAGE
    return EXIT_FAILED if errors else EXIT_OK


def as_document(outcome: Outcome[T]) -> dict[str, Any]:
    """Return one host's outcome for `--json`."""
    if outcome.error is not None:
        return {"ok": False, "error": error_document(outcome.error)}
    return {"ok": True, "value": outcome.result.model_dump(mode="json")}


def leave_without_reader() -> NoReturn:
    """End the process because the reader of its output is gone, as in `inv logs | head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_FAILED)


def error_document(error: RoostError) -> dict[str, Any]:
    """Return an error for `--json`."""
    return {
        "kind": error.kind,
        "message": as_spoken(error.message),
        "remedy": as_spoken(error.remedy),
        "details": error.details,
    }
