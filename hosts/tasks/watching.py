"""The task that shows logs of servers and extractions: `logs`."""

from __future__ import annotations

import re

from invoke.context import Context

from hosts.commands import logs as logging
from hosts.console.logs import LogPrinter
from hosts.console.output import exit_code
from hosts.errors import UsageError
from hosts.tasks.clusters import OF_JOB, refuse_without_cluster
from hosts.tasks.session import TARGET, finish, printing, roost_task, session
from remote.shared.messages.logs import LogSource, LogsRequest

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@roost_task(
    TARGET,
    {"json": "print one JSON object for each line"},
    server="only this server's log (default: all of the host's servers)",
    run="show the extractor's log of this run instead of the servers' logs",
    cluster="NAME of a cluster, with --run or --job: the logs of its jobs",
    job=OF_JOB,
    lines="how many of the last lines to show first, or all",
    follow="continue with new lines, across restarts and cut connections",
    grep="only lines that match this regular expression",
    access="also show the access lines of health probes and of Roost's own requests",
    since="only lines within this time, as in 30s, 10m, 2h, 1d",
    example="inv logs --hosts all -f --grep error",
)
def logs(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    server: str = "",
    run: str = "",
    cluster: str = "",
    job: str = "",
    lines: str = "100",
    follow: bool = False,
    grep: str = "",
    access: bool = False,
    since: str = "",
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show the logs of the servers, or of one run's extractor, from any number of hosts at once."""
    refuse_without_cluster(json, job=bool(job) and not cluster)
    if cluster and (host or hosts):
        with printing(json):
            raise UsageError("--host, --hosts cannot be combined with --cluster.", remedy="Leave out one of them.")
    with session(cluster or host, hosts, inventory, json) as (fleet, output):
        if len([one for one in (server, run, job) if one]) > 1:
            raise UsageError("--server, --run and --job exclude each other.", remedy="Give only one of them.")
        request = LogsRequest(
            sources=_sources(server, run, job),
            lines=_count(lines),
            follow=follow,
            grep=_pattern(grep),
            access=access,
            since_seconds=span(since),
        )
        printer = LogPrinter(fleet.hosts, json)
        outcomes = logging.logs(fleet, request, printer.item, printer.lost)
        for outcome in outcomes:
            if outcome.error is not None:
                printer.failed(outcome.host, outcome.error)
                output.error(outcome.error, outcome.host.name)
        finish(exit_code(outcomes))


def _sources(server: str, run: str, job: str) -> list[LogSource]:
    if job:
        return [LogSource(kind="job", name=job)]
    if run:
        return [LogSource(kind="run", name=run)]
    return [LogSource(kind="server", name=server)] if server else []


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"--grep {text!r} is not a regular expression: {error}.") from error
    return text


def _count(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdigit():
        raise UsageError(f"--lines {text!r} is not a number.", remedy="Give a number, or all.")
    return int(text)


def span(text: str) -> float | None:
    """Return `10m` in seconds, and None for an empty text; raises UsageError for anything else."""
    if not text:
        return None
    match = _SPAN.fullmatch(text)
    if match is None:
        raise UsageError(f"--since {text!r} is not a span of time.", remedy="As in 30s, 10m, 2h or 1d.")
    return float(match[1]) * _SECONDS[match[2]]
