"""Output of `serve`, `restart` and `stop`: one line for each host, planned commands, processes in the way."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hosts.console.output import Output
from hosts.doctor.findings import Finding
from hosts.fleet import Outcome
from hosts.inventory.model import Host
from hosts.units import duration, size
from remote.shared.messages.server import ProcessRow, ServeResult, ServerState, StopResult

IN_THE_WAY = "something stays in the way"


def server_line(result: ServeResult) -> str:
    """Return `main ready on port 8000 after 41 s (SGLang 0.5.23, capture of [3, 31, 59, 61])`."""
    if result.planned:
        return f"would start {', '.join(plan.name for plan in result.planned)}"
    return "; ".join(_state(state) for state in result.servers)


def _state(state: ServerState) -> str:
    took = f" after {duration(state.ready_at - state.started_at)}" if state.ready_at else ""
    proof = f": {state.canary}" if state.canary else ""
    capture = f", capture of {state.capture.boundaries}{proof}" if state.capture else ""
    return f"{state.name} {state.status} on port {state.port}{took} (SGLang {state.sglang}{capture})"


def show_keys(output: Output, outcomes: Sequence[Outcome[ServeResult]]) -> None:
    """Print for each ready server the file with its key, in a request that can be tried on the host."""
    for outcome in outcomes:
        for state in outcome.value.servers if outcome.value else []:
            if state.authorization and not state.spec.node_rank:
                header = shlex.quote(f"@{state.authorization}")
                url = f"http://127.0.0.1:{state.port}/v1/models"
                output.note(f"{outcome.host.name} {state.name}: every request needs its key: curl -H {header} {url}")


def show_finding(output: Output, host: Host, finding: Finding) -> None:
    """Print a finding about a host that does not prevent its servers from starting."""
    output.note(f"{host.name}: {finding.subject} {finding.text}. {finding.remedy}")


def show_plan(output: Output, outcomes: Sequence[Outcome[ServeResult]]) -> None:
    """Print each planned start: preparations, environment, command and log."""
    for outcome in outcomes:
        for plan in outcome.value.planned if outcome.value else []:
            output.line("")
            output.line(f"{outcome.host.name} {plan.name}")
            for step in plan.steps:
                output.line(f"  {step}")
            for name, value in sorted(plan.env.items()):
                output.line(f"  {name}={shlex.quote(value)}")
            output.line(f"  {shlex.join(plan.command)}")
            output.line(f"  log: {plan.log}")


def stop_line(result: StopResult, *, dry_run: bool = False, force: bool = False) -> str:
    """Say in one line what was stopped and what remains."""
    verb = "would stop" if dry_run else "stopped"
    said = [
        f"{verb} {', '.join(result.stopped)}"
        if result.stopped
        else f"nothing of Roost's {'is' if dry_run else 'was'} running"
    ]
    if result.others:
        count = f"{len(result.others)} process{'es' if len(result.others) > 1 else ''}"
        if force:
            said.append(f"{'would end' if dry_run else 'ended'} {count} by force")
        else:
            said.append(f"{count} of others in the way (--force ends exactly the listed processes)")
    said += result.notes
    said += [f"freed {freed}" for freed in result.freed]
    said += result.remaining
    return "; ".join(said)


def is_left(result: StopResult, *, force: bool = False) -> bool:
    """Return whether a process remains in the way, or would without `--force`; the exit code is then 1."""
    return bool(result.remaining or (result.others and not force))


def show_processes(output: Output, outcomes: Sequence[Outcome[StopResult]], *, own: bool) -> None:
    """Print the processes in the way, by host; with `own`, Roost's own processes too."""
    rows = [
        (outcome.host.name, *_cells(row))
        for outcome in outcomes
        for row in ([*(outcome.value.processes if own else []), *outcome.value.others] if outcome.value else [])
    ]
    if rows:
        output.table(("host", "pid", "user", "age", "GPU memory", "holds", "owner", "command"), rows)


def _cells(row: ProcessRow) -> tuple[str, ...]:
    memory = "" if row.gpu_bytes is None else size(row.gpu_bytes)
    return (str(row.pid), row.user, duration(row.age_seconds), memory, ", ".join(row.holds), row.owner, row.command)
