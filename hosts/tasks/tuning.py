"""Tasks about modes and speed: `diff-modes`."""

from __future__ import annotations

from invoke.context import Context

from hosts.inventory.modes import diff_modes as differences_of
from hosts.tasks.session import JSON, TARGET, roost_task, session


@roost_task(TARGET, JSON, name="diff-modes", first="a mode of the inventory", second="another one")
def diff_modes(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    first: str = "serve",
    second: str = "extract",
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show what differs between two modes, and why each setting is there."""
    with session(host, hosts, inventory, json) as (fleet, output):
        found = {each.name: differences_of(each, first, second) for each in fleet.hosts}
        output.document({name: [row.model_dump() for row in rows] for name, rows in found.items()})
        for name, rows in found.items():
            cells = [(row.setting, row.first, row.second, row.why) for row in rows]
            output.table(("setting", first, second, "why"), cells, title=name)
