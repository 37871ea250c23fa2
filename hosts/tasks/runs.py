"""The run that a task works on. Laptop's side."""

from __future__ import annotations

from hosts.commands.extract import newest_run
from hosts.console.output import Output
from hosts.fleet import Fleet


def chosen_run(fleet: Fleet, output: Output, named: str) -> str:
    """Return the named run, or the run planned last and say which; raises UsageError if there is no plan."""
    if named:
        return named
    found = newest_run(fleet)
    output.note(f"The run planned last: {found}.")
    return found
