"""A server's `state.json`: the only reader and writer of what a host remembers about its servers.

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
    """The record of one server in the hands of its only writer."""

    def __init__(self, paths: ServerPaths, state: ServerState) -> None:
        self.paths = paths
        self.state = state

    def change(self, **values: object) -> None:
        """Change the state and write it, whole."""
        self.state = self.state.model_copy(update=values)
        save(self.paths, self.state)


def save(paths: ServerPaths, state: ServerState) -> None:
    """Write the state whole."""
    write_whole(paths.state, state.model_dump_json(indent=1).encode())


def load(paths: ServerPaths, *, owner: int | None = None) -> ServerState | None:
    """The recorded state, or None if this server was never started.

    `owner` is the user id that the record must belong to, by default this process's. Raises HostError for a record of
    anybody else, one that is no regular file, and one of another version.
    """
    try:
        return ServerState.model_validate_json(read_own(paths.state, owner=owner))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise HostError(
            f"{paths.state} was not written by this version of Roost.",
            remedy="Stop that server with the version that started it, or remove the file once nothing of it runs.",
        ) from error


def names(workdir: Workdir) -> list[str]:
    """All servers that have a record, sorted."""
    return sorted(path.parent.name for path in workdir.servers.glob("*/state.json"))


def chosen(workdir: Workdir, wanted: list[str]) -> list[str]:
    """`wanted`, or all recorded servers where nothing is named; a name without a record is a UsageError."""
    known = names(workdir)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UsageError(
            f"There is no record of a server {unknown[0]!r}.",
            remedy=f"Servers here: {', '.join(known) or 'none'}.",
        )
    return wanted or known


def report(state: ServerState) -> ServerReport:
    """Put the record beside what is really there."""
    alive = find(state.server) is not None
    supervised = find(state.supervisor) is not None
    return ServerReport(state=state, alive=alive, supervised=supervised, problem=_problem(state, alive, supervised))


def servers(request: ServersRequest, context: Context) -> ServersResult:
    """The verb `servers`: read-only, at any time, also while another command holds the lock."""
    reports = []
    for name in chosen(context.workdir, request.names):
        state = load(context.workdir.server(name))
        if state is not None:
            reports.append(report(state))
    return ServersResult(servers=_asked(reports, context.workdir) if request.ask else reports)


def _asked(reports: list[ServerReport], workdir: Workdir) -> list[ServerReport]:
    """The reports, with a problem for each server that is ready by its record and answers no generation."""
    try:
        from remote.servers.probing import pulse
    except ModuleNotFoundError:  # a Python without SGLang, which `inv doctor` names
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
            return f"The record says {state.status}, but neither the server nor its supervisor runs any more."
        if not supervised:
            return "The server runs, but its supervisor is gone: nothing records its end."
        return state.trouble
    left = members(state.server, state.mark) if state.server else []
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        return f"The server ended, but processes that it started still run: {pids}."
    return ""
