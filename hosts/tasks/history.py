"""The task `history`, which shows who changed what, from the laptop's own trail and the hosts' trails."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from invoke.context import Context

from hosts.console.output import exit_code
from hosts.console.text import moment
from hosts.fleet import Outcome
from hosts.inventory.kept import Kept
from hosts.tasks.session import JSON, TARGET, finish, roost_task, session
from hosts.tasks.watching import span
from hosts.units import duration
from remote.shared.messages.trail import Ending, Step, TrailRequest, TrailSteps
from remote.shared.trail import Trail

UNKNOWN_END = "no end recorded: it still runs, or it was killed"
_WORST: tuple[Ending, ...] = ("failed", "interrupted", "refused", "ok")


@dataclass
class Done:
    """One command, with all that the laptop and the hosts recorded of it."""

    at: float
    operator: str
    origin: str
    """The address from which the command came, as a host saw it; "" for this laptop."""
    words: str
    hosts: list[str]
    ending: Ending | None = None
    seconds: float = 0.0
    amiss: list[str] = field(default_factory=list)
    """Endings that hosts recorded differently than the laptop: `gpu1: serve failed`."""

    @property
    def outcome(self) -> str:
        """Return how the command ended, in words."""
        return "; ".join([self.ending or UNKNOWN_END, *self.amiss])


@roost_task(
    TARGET,
    JSON,
    since="only commands typed within this time, as in 30s, 10m, 2h, 1d",
    example="inv history --hosts all --since 1d",
)
def history(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    since: str = "",
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show the commands that changed these hosts: who typed each, on which laptop, and how it ended.

    The list holds this laptop's own commands and those that the hosts recorded from any laptop, oldest first.
    """
    with session(host, hosts, inventory, json) as (fleet, output):
        seconds = span(since)
        start = 0.0 if seconds is None else time.time() - seconds
        outcomes = fleet.call("trail", TrailRequest(since=start), TrailSteps)
        here = Trail(Kept.beside(fleet.inventory.path).trail).read(start)
        damaged = [("this laptop", here.damaged), *((o.host.name, o.result.damaged) for o in outcomes if o.ok)]
        found = list(merged(here.steps, outcomes))
        output.document({"commands": [{**vars(done), "outcome": done.outcome} for done in found]})
        output.table(("when", "who", "from", "hosts", "command", "outcome", "took"), [_row(done) for done in found])
        for outcome in outcomes:
            if outcome.error is not None:
                output.error(outcome.error, outcome.host.name)
        for place, lines in damaged:
            if lines:
                output.note(f"{place}: {lines} lines of the trail could not be read and are left out.")
        finish(exit_code(outcomes))


def merged(here: Iterable[Step], outcomes: Sequence[Outcome[TrailSteps]]) -> Iterator[Done]:
    """Yield every command that concerns these hosts once, oldest first.

    A command of this laptop is one line for all of its hosts; a host adds only an ending that differs from the
    laptop's. A command of another laptop is one line for each host.
    """
    names = {outcome.host.name for outcome in outcomes}
    own = {key: done for key, done in _commands(here) if not done.hosts or names.intersection(done.hosts)}
    found = list(own.values())
    for outcome in outcomes:
        for (command, verb), done in _commands(outcome.result.steps if outcome.ok else ()):
            name = outcome.host.name
            mine = own.get((command, "")) if command else None
            if mine is None:
                done.hosts = [name]
                done.words = done.words or verb
                found.append(done)
            elif done.ending not in {mine.ending, "ok"}:
                mine.amiss.append(f"{name}: {verb} {done.ending or UNKNOWN_END}")
    yield from sorted(found, key=lambda done: done.at)


def _commands(steps: Iterable[Step]) -> Iterator[tuple[tuple[str, str], Done]]:
    """Pair the beginning and the end of each command, by its id and, on a host, its verb."""
    found: dict[tuple[str, str], Done] = {}
    for number, step in enumerate(steps):
        key = (step.typed.id or f"#{number if step.ending is None else number - 1}", step.verb)
        done = found.setdefault(
            key, Done(step.at - step.seconds, step.operator, step.origin, step.typed.words, list(step.hosts))
        )
        if step.ending is not None:
            done.ending = step.ending if done.ending is None else min(done.ending, step.ending, key=_WORST.index)
            done.seconds += step.seconds
    yield from found.items()


def _row(done: Done) -> tuple[str, str, str, str, str, str, str]:
    took = duration(done.seconds) if done.ending else ""
    return (moment(done.at), done.operator, done.origin or "here", ",".join(done.hosts), done.words, done.outcome, took)
