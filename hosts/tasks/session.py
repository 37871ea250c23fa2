"""Shared by all tasks: choosing hosts, loading the inventory, printing, and turning errors into exit codes.

Exit codes: 0 success, 1 a host or a record failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import cleandoc
from typing import Any

from invoke.context import Context
from invoke.tasks import task

from hosts.commands.extract import newest_run
from hosts.console.live import DeadHosts
from hosts.console.output import EXIT_FAILED, EXIT_USAGE, Output, error_document, leave_without_reader
from hosts.errors import RoostError, UsageError
from hosts.fleet import Fleet
from hosts.inventory.load import inventory_path, is_from_above, load_inventory
from hosts.inventory.model import Inventory
from hosts.inventory.select import select
from hosts.tasks import interrupts
from hosts.tasks.commandline import RoostTask, as_typed
from hosts.tasks.trailing import in_trail, note_in_trail

TARGET = {
    "host": "NAME of a host or a group in the inventory; may be given several times",
    "hosts": "NAMES of hosts and groups, separated by commas, or 'all'",
    "inventory": "inventory file (default: $ROOST_INVENTORY, else the nearest inventory.yaml from here upward)",
}
JSON = {"json": "print one JSON document instead of text"}
WAIT = {"wait": "wait for another operator's command on a host instead of refusing"}
DRY_RUN = {"dry_run": "change nothing, and say what would be done"}


def roost_task(
    *helps: dict[str, str],
    example: str,
    name: str | None = None,
    iterable: Sequence[str] = (),
    changes: bool = False,
    **more: str,
) -> Callable[[Callable[..., Any]], Any]:
    """Make an Invoke task with help for every argument, an example, and no surprising one-letter flags.

    Arguments named in `iterable` may be given several times and arrive as a list. A task that `changes` something, as
    every task with `--dry-run` does without that option, leaves its line in the trail.
    """
    texts: dict[str, str] = {}
    for part in helps:
        texts.update(part)
    texts.update(more)
    leaves_line = changes or "dry_run" in texts
    options: dict[str, Any] = {"help": texts, "auto_shortflags": False, "iterable": list(iterable), "klass": RoostTask}
    if name:
        options["name"] = name

    def made(body: Callable[..., Any]) -> Any:
        @wraps(body)
        def typed(context: Context, **given: Any) -> Any:
            with printing(bool(given.get("json"))):
                values = as_typed(body, given)
            with in_trail(leaves_line and not values.get("dry_run")):
                return body(context, **values)

        typed.__doc__ = f"{cleandoc(body.__doc__ or '')}\n\nExample: {example}"
        return task(**options)(typed)

    return made


@contextmanager
def printing(json: bool) -> Iterator[Output]:
    """Yield an Output; an error in the block is printed as one sentence and becomes the exit code."""
    output = Output(json)
    try:
        with interrupts.raised():
            yield output
            output.flush()
    except RoostError as error:
        output.error(error)
        output.document({"error": error_document(error)})
        sys.exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    except KeyboardInterrupt:
        output.note(f"Interrupted; {output.detached or 'nothing'} continues.")
        interrupts.leave()
    except BrokenPipeError:
        leave_without_reader()


def the_inventory(output: Output, given: str | None) -> Inventory:
    """Load the named or the nearest inventory; an inventory from a folder above is named in a note."""
    path = inventory_path(given)
    if is_from_above(path, given):
        output.note(f"Inventory: {path}")
    return load_inventory(path)


@contextmanager
def session(host: str | None, hosts: str | None, inventory: str | None, json: bool) -> Iterator[tuple[Fleet, Output]]:
    """Yield the fleet of the chosen hosts and the task's Output; connections are closed when the block ends."""
    with printing(json) as output:
        loaded = the_inventory(output, inventory)
        fleet = Fleet(loaded, select(loaded, host, hosts))
        fleet.watcher = DeadHosts(output)
        note_in_trail(loaded.path, [chosen.name for chosen in fleet.hosts], output)
        try:
            yield fleet, output
        finally:
            fleet.close()


def chosen_run(fleet: Fleet, output: Output, named: str) -> str:
    """Return the named run, or the run planned last and say which; raises UsageError if there is no plan."""
    if named:
        return named
    found = newest_run(fleet)
    output.note(f"Using the run planned last: {found}.")
    return found


def indices(text: str) -> list[int]:
    """Return the indices that `--records` names; raises UsageError if it is not a list of indices."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UsageError(f"--records {text!r} is not a list of indices such as 0,17,203.") from error


def finish(code: int) -> None:
    """Exit with this code, unless it is 0."""
    if code:
        sys.exit(code)
