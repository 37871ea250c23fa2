"""`inv help`, and the collection of all tasks for `tasks.py`."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task
from rich.table import Table

from hosts.console.output import new_console
from hosts.console.text import as_spoken
from hosts.tasks.catalog import GROUPS, summary, tasks_of
from hosts.tasks.session import printing


@task(name="help")
def overview(context: Context) -> None:
    """Show every task in the order of use (one task's options: inv TASK --help)."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for title, module in GROUPS:
        table.add_row(f"[bold]{title}[/bold]", "")
        for member in tasks_of(module):
            table.add_row(as_spoken(f"  inv {member.name}"), summary(member))
    with printing(json=False):
        new_console().print(table)


def collection() -> Collection:
    """Return every task of the catalog, and `help`."""
    found = Collection(overview)
    for _, module in GROUPS:
        for member in tasks_of(module):
            found.add_task(member)
    return found
