"""Output of `extract` and `status`: a live line for each working host, and a table of all hosts."""

from __future__ import annotations

from collections.abc import Sequence

from hosts.commands.extract import Preview, Started
from hosts.commands.status import HostStatus
from hosts.console.output import Output
from hosts.fleet import Outcome
from hosts.plan.plan import Plan
from hosts.units import duration, size
from remote.shared.messages.envelope import Progress
from remote.shared.messages.extract import Counts, ExtractorState, ReopenResult, RunStatus
from remote.shared.messages.server import ServersResult

COLUMNS = ("host", "servers", "run", "state", "records", "tokens", "tokens/s", "on disk", "left", "failed", "waited")


def show_start(output: Output, started: Started) -> None:
    """Print hosts without a share, shares that were given to others, and lost hosts that could not be fenced."""
    for host in started.idle:
        output.note(f"{host} has no share in the plan of {started.plan.run}: nothing is done there.")
    for host, records in started.given_away.items():
        output.note(f"{host} is left out: the undelivered of its {records:,} records go to the others.")
    for host, reason in started.unfenced.items():
        output.note(f"{host} could not be fenced ({reason}); it may still extract records that other hosts have now.")
    for host, reopened in started.reopened.items():
        output.note(f"{host}: quarantined, and open again now: {_reopened(reopened)}.")


def show_preview(output: Output, preview: Preview, wish: str) -> int:
    """Print what `--dry-run` found that a start, or `wish`, would do on each host; return the exit code."""
    for host, records in preview.given_away.items():
        output.note(f"{host} would be left out: the undelivered of its {records:,} records would go to the others.")
    places = {id(outcome.value): outcome.host.name for outcome in preview.outcomes}
    for host, reopened in preview.reopened.items():
        output.note(f"{host}: quarantined, and would be open again: {_reopened(reopened)}.")
    return output.outcomes(
        preview.outcomes, lambda status: _preview_line(preview.plan, places[id(status)], status, wish)
    )


def _preview_line(plan: Plan, host: str, status: RunStatus, wish: str) -> str:
    if wish:
        return f"would be asked to {wish}" if status.alive else f"no extractor is at work, so nothing would {wish}"
    share = plan.share(host)
    if share is None:
        return "has no share in the plan: nothing would start"
    verb = "goes on with" if status.alive else "would start on"
    done = _finished(status.state.counts)
    return f"{verb} epoch {plan.epoch}: {share.records:,} records, {share.tokens:,} tokens; {done:,} done there so far"


def start_line(state: ExtractorState) -> str:
    """`epoch 1, 120 of 300 records done already`."""
    counts = state.counts
    return f"epoch {state.epoch}, {_finished(counts):,} of {counts.assigned:,} records done so far"


def live_line(status: RunStatus) -> Progress:
    """A host's progress: `1,204 tokens/s, 3.1 GiB, 4 min 10 s left`."""
    state, counts = status.state, status.state.counts
    said = [f"{state.tokens_per_second:,.0f} tokens/s", size(counts.bytes_done)]
    if left := left_seconds(state):
        said.append(f"{duration(left)} left")
    said += _troubles(state)
    if state.status != "running":
        said.insert(0, f"{state.status}{': ' + state.cause if state.cause else ''}")
    done = counts.done + counts.freed + counts.quarantined
    return Progress(text=", ".join(said), done=done, total=counts.assigned, unit="records")


def end_line(status: RunStatus) -> str:
    """`complete: 300 records, 80,112 tokens, 12.4 MiB`."""
    state, counts = status.state, status.state.counts
    said = f"{state.status}: {_finished(counts):,} of {counts.assigned:,} records, {counts.tokens_done:,} tokens"
    said = f"{said}, {size(counts.bytes_done)}"
    if state.cause:
        said = f"{said}; {state.cause}"
    said = f"{said}; {_compared(status)}"
    causes = _causes(status.causes)
    return f"{said}; quarantined: {causes}. {_retry(state.run)}" if causes else said


def _compared(status: RunStatus) -> str:
    """How many records were compared with what the server itself said; none is said aloud."""
    count = f"{status.parity_checked:,} records" if status.parity_checked else "NOT ONE record"
    return f"{count} compared with the server's own logprobs"


def has_failed(status: RunStatus) -> bool:
    """Whether the run failed on this host or quarantined records; the exit code is then 1."""
    return status.state.status == "failed" or status.state.counts.quarantined > 0


def left_seconds(state: ExtractorState) -> float | None:
    """Return the seconds to the end at the rate of the last minute; None if that rate is 0."""
    left = state.counts.tokens_assigned - state.counts.tokens_done
    return left / state.tokens_per_second if state.tokens_per_second > 0 and left > 0 else None


def show_status(output: Output, outcomes: Sequence[Outcome[HostStatus]]) -> None:
    """Print the table, and below it a sentence for each host that needs one."""
    good = [(outcome.host.name, outcome.value) for outcome in outcomes if outcome.value is not None]
    if good:
        output.table(COLUMNS, [_row(host, value) for host, value in good])
    for host, value in good:
        if value.run.state.cause:
            output.note(f"{host}: {value.run.state.cause}")
        for cause, count in value.run.causes.items():
            output.note(f"{host}: {count} quarantined: {cause}")
        for report in value.servers.servers:
            if report.problem:
                output.note(f"{host}: {report.state.name}: {report.problem} {report.remedy}".rstrip())
        if _finished(value.run.state.counts):
            output.note(f"{host}: {_compared(value.run)}.")
        if beyond := value.run.state.counts.beyond:
            output.note(f"{host}: {beyond:,} more records were finished under an earlier epoch; a pull brings them.")
        if value.run.records_flagged:
            output.note(f"{host}: {value.run.records_flagged} records have norms outside the run's band (kept).")
    for run in sorted({value.run.run for _, value in good if value.run.causes}):
        output.note(_retry(run))


def _row(host: str, value: HostStatus) -> tuple[object, ...]:
    state, counts = value.run.state, value.run.state.counts
    if not value.run.run:
        return (host, _servers(value.servers), "", "no run yet", "", "", "", "", "", "", "")
    left = left_seconds(state)
    return (
        host,
        _servers(value.servers),
        value.run.run,
        state.status,
        f"{_finished(counts):,} of {counts.assigned:,}",
        f"{counts.tokens_done:,}",
        f"{state.tokens_per_second:,.0f}",
        size(counts.bytes_done),
        duration(left) if left else "",
        counts.quarantined,
        duration(max(state.backpressure_seconds, value.run.prefill_wait_seconds)),  # they wait at the same time
    )


def _servers(result: ServersResult) -> str:
    return ", ".join(f"{report.state.name} {report.state.status}" for report in result.servers) or "none"


def _reopened(reopened: ReopenResult) -> str:
    return f"{reopened.records:,}" + (f" ({_causes(reopened.causes)})" if reopened.causes else "")


def _retry(run: str) -> str:
    command = f"inv extract --hosts all --run {run} --retry-quarantined"
    return f"Once the cause is mended, `{command}` tries the quarantined records again."


def _causes(causes: dict[str, int]) -> str:
    return "; ".join(f"{count} with {cause!r}" for cause, count in causes.items())


def _finished(counts: Counts) -> int:
    return counts.done + counts.freed


def _troubles(state: ExtractorState) -> list[str]:
    said = []
    if state.counts.quarantined:
        said.append(f"{state.counts.quarantined} failed")
    if state.backpressure_seconds >= 1:
        said.append(f"{duration(state.backpressure_seconds)} waited for the disk")
    return said
