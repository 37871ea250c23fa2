"""Collects the data of a report: every host's account and history of a run, from the hosts or from a destination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from hosts.errors import RoostError, UsageError
from hosts.fleet import Fleet
from hosts.transport.backend import Backend
from remote.shared.files import SHARED_MODE, read_own, write_whole
from remote.shared.messages.history import (
    AccountRequest,
    Event,
    HistoryItem,
    HistoryRequest,
    HistoryResult,
    Point,
    RunAccount,
)
from remote.shared.paths import is_safe_name
from remote.shared.trail import Trail
from remote.shared.transfer.destination import Destination

DEADLINE_SECONDS = 120.0
MOST_POINTS = 1_500
FOLDER = "report"
"""The folder below a destination's `roost/` with a file for each source host."""


class HostRecord(BaseModel):
    """One host's data on a run."""

    host: str
    account: RunAccount | None = None
    points: list[Point] = Field(default_factory=list)
    events: list[Event] = Field(default_factory=list)
    problem: str = ""
    """One sentence on why the host's data, or its history, is missing; "" if nothing is missing."""
    cost_per_hour: float | None = None


def asked(fleet: Fleet, run: str) -> list[HostRecord]:
    """Ask every host. An unreachable host's record has its problem; a host without the run is left out.

    Raises UsageError if every host answers and none has the run.
    """
    outcomes = fleet.each(lambda backend: of_host(backend, run))
    found = []
    for outcome in outcomes:
        if outcome.value is not None:
            found.append(outcome.value)
        elif not isinstance(outcome.error, UsageError):
            host = outcome.host
            found.append(HostRecord(host=host.name, problem=str(outcome.error), cost_per_hour=host.cost_per_hour))
    if not found:
        raise UsageError(f"None of these hosts knows the run {run!r}.", remedy="inv runs --hosts all lists their runs.")
    return found


def of_host(backend: Backend, run: str) -> HostRecord:
    """Return one host's account and history; raises RoostError if the host lacks the run or cannot be reached."""
    found = HostRecord(host=backend.host.name, cost_per_hour=backend.host.cost_per_hour)
    found.account = backend.call("account", AccountRequest(run=run), RunAccount, deadline=DEADLINE_SECONDS)

    def take(value: dict[str, Any]) -> None:
        found.points.extend(HistoryItem.model_validate(value).points)

    request = HistoryRequest(run=run, most=MOST_POINTS)
    result = backend.call("history", request, HistoryResult, deadline=DEADLINE_SECONDS, on_item=take)
    found.events, found.problem = result.events, result.problem
    return found


def typed(trail: Path, run: str) -> list[tuple[float, str]]:
    """Return the commands about this run in the laptop's trail, with their times; [] if the trail cannot be read."""
    try:
        steps = Trail(trail).read().steps
    except RoostError:
        return []
    found: dict[str, tuple[float, str]] = {}
    for step in steps:
        if step.typed.id and run in step.typed.words.replace("=", " ").split():
            found.setdefault(step.typed.id, (step.at, step.typed.words))
    return list(found.values())


def keep_all(fleet: Fleet, run: str, destination: Path) -> None:
    """Write every host's data on a run to the destination. If a host does not answer, its earlier data stays."""
    for outcome in fleet.each(lambda backend: of_host(backend, run)):
        if outcome.value is not None:
            keep(destination, outcome.value)


def keep(destination: Path, record: HostRecord) -> None:
    """Write a host's data on a run to the destination, so that a report does not need the host."""
    path = _folder(destination) / f"{record.host}.json"
    write_whole(path, record.model_dump_json().encode(), durable=False, mode=SHARED_MODE)


def kept(destination: Path, run: str) -> list[HostRecord]:
    """Return the destination's data on the run; raises UsageError if there is none."""
    found = [_read(path) for path in sorted(_folder(destination).glob("*.json"))]
    mine = [one for one in found if one.account is None or one.account.run == run]
    if not any(one.account for one in mine):
        raise UsageError(
            f"{destination} has no data for a report on the run {run!r}.",
            remedy="Name a folder that a pull filled, or leave out --source, so that the hosts are asked.",
        )
    return mine


def _folder(destination: Path) -> Path:
    return Destination(destination.expanduser()).roost / FOLDER


def _read(path: Path) -> HostRecord:
    name = path.stem if is_safe_name(path.stem) else "a host"
    try:
        return HostRecord.model_validate_json(read_own(path, owner=path.lstat().st_uid))
    except (OSError, RoostError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        return HostRecord(host=name, problem=f"{path} cannot be read: {reason}.")
