"""Moves records between hosts while a task follows a run, and prints a line for each move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hosts.commands.attending import Attendant, attended
from hosts.commands.moves import Mover, Step
from hosts.commands.runs import one_identity
from hosts.commands.status import HostStatus
from hosts.console.output import Output
from hosts.errors import RoostError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from remote.shared.messages.extract import RunStatus
from remote.shared.messages.run import RunIdentity


@contextmanager
def moving(fleet: Fleet, output: Output, identity: RunIdentity) -> Iterator[Attendant | None]:
    """Move the run's open records to hosts that are done while the block lasts; None if they stay where they are.

    They stay if there is only one host, and in a run of answers, because only each host's own share has its
    conversations.
    """
    if len(fleet.hosts) < 2 or identity.answers is not None:
        yield None
        return
    with attended(mover(fleet, output, identity)) as attendant:
        yield attendant


class Movers:
    """Moves records of every run that several hosts have, for a task that shows all runs repeatedly."""

    def __init__(self, fleet: Fleet, output: Output) -> None:
        self._fleet, self._output = fleet, output
        self._movers: dict[str, Mover | None] = {}

    def step(self, outcomes: list[Outcome[HostStatus]]) -> None:
        """Move records of the runs that are due."""
        told: dict[str, dict[str, RunStatus]] = {}
        for outcome in outcomes:
            for run in outcome.value.standing.runs if outcome.value is not None else ():
                told.setdefault(run.run, {})[outcome.host.name] = run
        for name, hosts in told.items():
            if len(hosts) < 2:
                continue
            if name not in self._movers:
                self._movers[name] = self._mover(name)
            if (found := self._movers[name]) is not None:
                found.step(hosts)

    def _mover(self, run: str) -> Mover | None:
        """Return the run's mover; None if the hosts have different runs of this name, or answers."""
        identity = one_identity(self._fleet, run)
        if identity is None or identity.answers is not None:
            return None
        return mover(self._fleet, self._output, identity)


def mover(fleet: Fleet, output: Output, identity: RunIdentity) -> Mover:
    """Return a mover that prints each move, and each error once and not at every attempt."""
    said: dict[str, str] = {}

    def tell(host: Host, told: Step | RoostError) -> None:
        if isinstance(told, Step):
            said.pop(host.name, None)
            what = f"{told.records:,} records ({told.tokens:,} tokens)"
            output.note(f"{told.taker}: took over {what} from {told.giver}, which would have ended later")
        elif said.get(host.name) != told.message:
            said[host.name] = told.message
            output.note(f"{host.name}: records could not be moved: {told.message}")

    return Mover(fleet, identity, tell)
