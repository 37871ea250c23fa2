"""Where data tasks run: on the laptop, or on hosts of the inventory with the files there. Laptop's side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from pydantic import BaseModel

from hosts.console.live import DeadHosts
from hosts.console.output import EXIT_FAILED, EXIT_OK, Output
from hosts.errors import UsageError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.select import select
from hosts.tasks.session import TARGET, printing, the_inventory
from hosts.tasks.trailing import note_in_trail

T = TypeVar("T", bound=BaseModel)

PLACES = {
    "host": "run on this host, with the paths of that host (default: on this laptop)",
    "hosts": "run on each of these hosts, with its own paths: names and groups, or 'all'",
    "inventory": TARGET["inventory"],
}


@contextmanager
def places(host: str | None, hosts: str | None, inventory: str | None, json: bool) -> Iterator[tuple[Fleet, Output]]:
    """Yield a fleet of the named hosts, or of the laptop alone; its connections are closed when the block ends."""
    with printing(json) as output:
        loaded = the_inventory(output, inventory)
        named = host is not None or hosts is not None
        fleet = Fleet(loaded, select(loaded, host, hosts) if named else [loaded.local])
        fleet.watcher = DeadHosts(output)
        note_in_trail(loaded.path, [place.name for place in fleet.hosts], output)
        try:
            yield fleet, output
        finally:
            fleet.close()


def show_places(
    output: Output,
    fleet: Fleet,
    outcomes: Sequence[Outcome[T]],
    show: Callable[[Output, T], None],
    failed: Callable[[T], bool] = lambda _: False,
) -> int:
    """Print the laptop's result alone, or each host's result under the host's name; returns the exit code.

    Raises the error of the laptop's call, if the laptop ran it.
    """
    if fleet.hosts == [fleet.inventory.local]:
        result = outcomes[0].result
        output.document(result.model_dump(mode="json"))
        show(output, result)
        return EXIT_FAILED if failed(result) else EXIT_OK

    def by_host() -> None:
        for outcome in outcomes:
            if outcome.value is not None:
                output.line(f"{outcome.host.name}:")
                show(output, outcome.value)

    return output.outcomes(outcomes, failed=failed, details=by_host)


def demand(example: str, **options: object) -> None:
    """Raise UsageError naming every missing option, with `example` as the line to type.

    Required values are options, because Invoke would take `--help` as the value of a positional argument.
    """
    missing = [f"--{name}" for name, value in options.items() if not value]
    if missing:
        listed = " and ".join([", ".join(missing[:-1]), missing[-1]] if len(missing) > 1 else missing)
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(f"{listed} {verb} missing.", remedy=f"As in: {example}")
