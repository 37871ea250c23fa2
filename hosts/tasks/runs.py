"""Which run a task is about. Laptop's side."""

from __future__ import annotations

from hosts.commands.extract import newest_run
from hosts.console.output import Output
from hosts.fleet import Fleet


def chosen_run(fleet: Fleet, output: Output, named: str) -> str:
    """The run that was named, else the one planned last, which is then said; raises UsageError where none was."""
    if named:
        return named
    found = newest_run(fleet)
    output.note(f"The run planned last: {found}.")
    return found
