"""A server's record, `state.json`: the only module that reads and writes it.

Runs on the host, called by the supervisor and by the verbs `serve`, `stop` and `servers`.
"""

from __future__ import annotations

import asyncio

from pydantic import ValidationError

from remote.context import Context
from remote.shared.errors import HostError, UsageError
from remote.shared.files import read_own, write_whole
from remote.shared.messages.server import ServerReport, ServersRequest, ServersResult, ServerState
from remote.shared.paths import ServerPaths, Workdir
from remote.shared.processes import find, members


class Record:
    """One server's record, held by its only writer."""

    def __init__(self, paths: ServerPaths, state: ServerState) -> None:
        self.paths = paths
        self.state = state

    def change(self, **values: object) -> None:
        """Change the state and write the whole record."""
        self.state = self.state.model_copy(update=values)
        save(self.paths, self.state)


def save(paths: ServerPaths, state: ServerState) -> None:
    """Write the whole record."""
    write_whole(paths.state, state.model_dump_json(indent=1).encode())


def load(paths: ServerPaths, *, owner: int | None = None) -> ServerState | None:
    """Return the recorded state, or None if this server was never started.

    `owner` is the user id that the record must belong to, by default this process's. Raises HostError if the record
    belongs to another user, is no regular file, or was written by another version.
    """
    try:
        return ServerState.model_validate_json(read_own(paths.state, owner=owner))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise HostError(
            f"{paths.state} was not written by this version of Roost.",
            remedy="Stop the server with the version of Roost that started it, or remove the file if it has ended.",
        ) from error


def names(workdir: Workdir) -> list[str]:
    """Return the names of all servers with a record, sorted."""
    return sorted(path.parent.name for path in workdir.servers.glob("*/state.json"))


def chosen(workdir: Workdir, wanted: list[str]) -> list[str]:
    """Return the servers in `wanted`, or every recorded server if `wanted` is empty.

    Raises UsageError for a name that has no record.
    """
    known = names(workdir)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UsageError(
            f"There is no record of a server {unknown[0]!r}.",
            remedy=f"Servers here: {', '.join(known) or 'none'}.",
        )
    return wanted or known


def report(state: ServerState) -> ServerReport:
    """Compare the record with the processes that really run."""
    alive = find(state.server) is not None
    supervised = find(state.supervisor) is not None
    return ServerReport(state=state, alive=alive, supervised=supervised, problem=_problem(state, alive, supervised))


def servers(request: ServersRequest, context: Context) -> ServersResult:
    """The verb `servers`: read-only, and allowed while another command holds the lock."""
    reports = []
    for name in chosen(context.workdir, request.names):
        state = load(context.workdir.server(name))
        if state is not None:
            reports.append(report(state))
    return ServersResult(servers=_asked(reports, context.workdir) if request.ask else reports)


def _asked(reports: list[ServerReport], workdir: Workdir) -> list[ServerReport]:
    """Return the reports, with a problem for each server whose record says ready but that answers no generation."""
    try:
        from remote.servers.probing import pulse
    except ModuleNotFoundError:  # this Python has no SGLang, which `inv doctor` reports
        return reports
    ready = [one.state for one in reports if one.state.status == "ready" and one.alive and one.supervised]
    found = asyncio.run(pulse.problems((state, workdir.server(state.name)) for state in ready))
    return [
        one.model_copy(update={"problem": error.message, "remedy": error.remedy})
        if (error := found.get(one.state.name))
        else one
        for one in reports
    ]


def _problem(state: ServerState, alive: bool, supervised: bool) -> str:
    if state.status in ("starting", "ready"):
        if not alive and not supervised:
            return f"The record says {state.status}, but neither the server nor its supervisor runs."
        if not supervised:
            return "The server runs, but its supervisor has ended, so nothing will record the server's end."
        return state.trouble
    left = members(state.server, state.mark) if state.server else []
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        return f"The server ended, but processes that it started still run: {pids}."
    return ""
