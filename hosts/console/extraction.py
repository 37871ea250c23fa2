"""Output of `extract` and `status`: a live line for each working host, and a table of all hosts."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hosts.commands.extract import Preview, Started
from hosts.commands.moves import runner
from hosts.commands.status import HostStatus
from hosts.console.output import Output
from hosts.fleet import Outcome
from hosts.money import Bill, bill, said, total
from hosts.plan.moving import lag, next_moves
from hosts.plan.plan import Plan
from hosts.units import duration, size
from remote.shared.messages.envelope import Progress
from remote.shared.messages.extract import Counts, ExtractorState, ReopenResult, RunStatus
from remote.shared.messages.server import ServersResult
from remote.shared.words import counted

COLUMNS = (
    "host", "server", "state", "records", "tokens/s", "left", "failed", "last word", "GPU memory", "tokens", "on disk",
    "waited",
)  # fmt: skip
LAG_SECONDS = 60.0
"""Seconds that moving records must save before `status` suggests it."""
LEFT_OUT_FIRST = ("waited", "on disk", "tokens", "GPU memory", "last word", "failed", "left", "server")
"""Columns that a narrow terminal drops, in this order. A host's problems are always printed below the table."""


def show_start(output: Output, started: Started) -> None:
    """Print hosts without a share, shares that were given to others, and lost hosts that could not be fenced."""
    for host in started.idle:
        output.note(f"{host} has no share in the plan of {started.plan.run}: nothing is done there.")
    for host, records in started.given_away.items():
        output.note(
            f"{host} is left out: of its {counted(records, 'record')}, those not delivered yet go to the others."
        )
    for host, reason in started.unfenced.items():
        output.note(f"{host} could not be fenced ({reason}); it may still extract records that other hosts have now.")
    for host, reopened in started.reopened.items():
        output.note(f"{host}: opened again: {_reopened(reopened)}.")
    for step in started.handed_over:
        taken = counted(step.records, "record")
        output.note(f"{step.taker}: took over {taken} of {step.giver}, whose move an interrupted command had begun.")
    for host, error in started.stranded.items():
        output.note(f"{host}: a move that an interrupted command had begun could not be finished: {error}")


def show_preview(output: Output, preview: Preview, wish: str) -> int:
    """Print what `--dry-run` found that a start, or `wish`, would do on each host; return the exit code."""
    for host, records in preview.given_away.items():
        share = counted(records, "record")
        output.note(f"{host} would be left out: of its {share}, those not delivered yet would go to the others.")
    places = {id(outcome.value): outcome.host.name for outcome in preview.outcomes}
    for host, reopened in preview.reopened.items():
        output.note(f"{host}: would be opened again: {_reopened(reopened)}.")
    return output.outcomes(
        preview.outcomes, lambda status: _preview_line(preview.plan, places[id(status)], status, wish)
    )


def _preview_line(plan: Plan, host: str, status: RunStatus, wish: str) -> str:
    if wish:
        return f"would be asked to {wish}" if status.alive else f"no extractor is running, so nothing would {wish}"
    share = plan.share(host)
    if share is None:
        return "has no share in the plan: nothing would start"
    verb = "goes on with" if status.alive else "would start on"
    done = _finished(status.state.counts)
    records = counted(share.records, "record")
    return f"{verb} epoch {plan.epoch}: {records}, {share.tokens:,} tokens; {done:,} done there so far"


def start_line(state: ExtractorState) -> str:
    """Return `epoch 1, 120 of 300 records done so far`."""
    counts = state.counts
    paused = "; it is paused, and --resume continues it" if state.status == "paused" else ""
    return f"epoch {state.epoch}, {_finished(counts):,} of {counts.assigned:,} records done so far{paused}"


def live_line(status: RunStatus) -> Progress:
    """Return a host's progress: `1,204 tokens/s, 3.1 GiB, 4 min 10 s left`."""
    state, counts = status.state, status.state.counts
    said = [f"{state.tokens_per_second:,.0f} tokens/s", size(counts.bytes_done)]
    if left := left_seconds(status):
        said.append(f"{duration(left)} left")
    said += _troubles(state)
    if status.word != "running":
        said.insert(0, f"{status.word}{': ' + state.cause if state.cause else ''}")
    done = counts.done + counts.freed + counts.quarantined
    return Progress(text=", ".join(said), done=done, total=counts.assigned, unit="records")


def end_line(status: RunStatus) -> str:
    """Return `complete: 300 of 300 records, 80,112 tokens, 12.4 MiB`."""
    state, counts = status.state, status.state.counts
    done = f"{_finished(counts):,} of {counts.assigned:,} records, {counts.tokens_done:,} tokens"
    said = f"{status.word or state.status}: {done}, {size(counts.bytes_done)}"
    if status.overruled:
        said = f"{said}; {status.overruled}"
    if state.cause:
        said = f"{said}; {state.cause}"
    if status.task == "extract":
        said = f"{said}; {_compared(status)}"
    causes = _causes(status.causes)
    return f"{said}; quarantined: {causes}. {_retry(state.run, status.task)}" if causes else said


def _compared(status: RunStatus) -> str:
    """Return how many records were compared with the server's logprobs. That none was compared is emphasised."""
    count = f"{status.parity_checked:,} records" if status.parity_checked else "NOT ONE record"
    return f"{count} compared with the server's own logprobs"


def has_failed(status: RunStatus) -> bool:
    """Return whether the run failed on this host or quarantined records; the exit code is then 1."""
    return bool(failure(status))


def failure(status: RunStatus) -> str:
    """Return why this host's part of the run counts as failed, in one line; empty if it does not."""
    if status.state.status == "failed":
        return f"failed: {status.state.cause}"
    quarantined = status.state.counts.quarantined
    return f"{counted(quarantined, 'record')} quarantined" if quarantined else ""


def left_seconds(status: RunStatus) -> float | None:
    """Return the seconds to the end at the rate of the last minute; None if nothing moves."""
    state = status.state
    left = state.counts.tokens_assigned - state.counts.tokens_done
    moves = status.alive and status.word == "running" and state.tokens_per_second > 0
    return left / state.tokens_per_second if moves and left > 0 else None


def any_failed(value: HostStatus) -> bool:
    """Return whether exit code 1 is due to this host.

    A run failed or quarantined records there, records that it gave away did not arrive, or a server is in trouble.
    """
    servers = any(report.problem or report.state.status == "failed" for report in value.servers.servers)
    return servers or bool(value.not_taken) or any(has_failed(run) for run in value.standing.runs)


def show_status(output: Output, outcomes: Sequence[Outcome[HostStatus]], *, attached: bool = False) -> None:
    """Print a table for each run, a table for hosts without a run, and below them each problem as a sentence.

    Unless `attached`, the output also names idle hosts of a run that continues on other hosts, because no laptop moves
    records now.
    """
    good = [(outcome.host.name, outcome.value) for outcome in outcomes if outcome.value is not None]
    names = sorted({run.run for _, value in good for run in value.standing.runs})
    for name in names:
        rows = [_row(host, value, run) for host, value in good for run in value.standing.runs if run.run == name]
        output.table(COLUMNS, rows, title=f"run {name}", drop=LEFT_OUT_FIRST)
        if money := said(_bill(name, [value for _, value in good])):
            output.line(f"run {name}: {money}")
    idle = [(host, _servers(value.servers), _memory(value)) for host, value in good if not value.standing.runs]
    if idle:
        title = "hosts that do not know this run" if names else "hosts without a run"
        output.table(("host", "server", "GPU memory"), idle, title=title)
    for host, value in good:
        for report in value.servers.servers:
            if report.problem:
                output.note(f"{host}: {report.state.name}: {report.problem} {report.remedy}".rstrip())
        for run in value.standing.runs:
            _note_run(output, host, run)
        for name, lost in value.not_taken.items():
            for holder, records in lost.items():
                output.note(
                    f"{host}: {name}: {counted(records, 'record')} given to {holder} did not arrive there, because a "
                    f"command was interrupted, so no host makes them: `inv extract --hosts all --run {name}` hands "
                    "them over."
                )
    for name in [] if attached else names:
        _note_lag(output, name, {host: run for host, value in good for run in value.standing.runs if run.run == name})
    failed = {(run.run, run.task) for _, value in good for run in value.standing.runs if run.causes}
    for name, task in sorted(failed):
        output.note(_retry(name, task))


def _note_lag(output: Output, name: str, told: dict[str, RunStatus]) -> None:
    """Print how much time moving records would save, if a host has no open record."""
    runners = [runner(host, run, run.state.tokens_per_second) for host, run in told.items()]
    idle = [one.host for one in runners if one.takes and not one.left]
    won = lag(runners)
    if idle and next_moves(runners) and won > LAG_SECONDS:
        sooner = f"and the run would end {duration(won)} earlier" if won < float("inf") else "of a host that is idle"
        output.note(
            f"{name}: {', '.join(idle)} could take over open records, {sooner}: "
            f"`inv extract --hosts all --run {name}` moves them while it stays attached."
        )


def _bill(name: str, values: Sequence[HostStatus]) -> Bill:
    """Return the run's cost on the hosts that answered."""
    bills = []
    for value in values:
        for run in value.standing.runs:
            if run.run == name:
                counts, worked = run.state.counts, value.standing.worked_seconds.get(name)
                left = left_seconds(run) or (0.0 if run.state.status == "complete" else None)
                bills.append(bill(value.cost_per_hour, worked, left, counts.tokens_done, counts.bytes_done))
    return total(bills)


def _note_run(output: Output, host: str, run: RunStatus) -> None:
    if _finished(run.state.counts) and run.task == "extract":
        output.note(f"{host}: {run.run}: {_compared(run)}.")
    if run.state.cause:
        output.note(f"{host}: {run.run}: {run.state.cause}")
    for cause, count in run.causes.items():
        output.note(f"{host}: {run.run}: {count} quarantined: {cause}")
    if beyond := run.state.counts.beyond:
        output.note(f"{host}: {run.run}: {beyond:,} more records are from an earlier epoch; a pull brings them.")
    if run.records_flagged and run.task == "answer":
        flagged = counted(run.records_flagged, "answer is", "answers are")
        output.note(f"{host}: {run.run}: {flagged} marked (cut, empty, repeating or refused).")
    elif run.records_flagged:
        flagged = counted(run.records_flagged, "record has", "records have")
        output.note(f"{host}: {run.run}: {flagged} norms outside the run's band (kept).")


def _row(host: str, value: HostStatus, run: RunStatus) -> tuple[object, ...]:
    state, counts = run.state, run.state.counts
    left = left_seconds(run)
    return (
        host,
        _servers(value.servers),
        run.word,
        f"{_finished(counts):,}/{counts.assigned:,}",
        f"{state.tokens_per_second:,.0f}" if left else "",
        duration(left) if left else "",
        counts.quarantined,
        f"{duration(max(0.0, time.time() - state.updated_at))} ago" if run.alive and state.updated_at else "",
        _memory(value),
        f"{counts.tokens_done:,}",
        size(counts.bytes_done),
        duration(max(state.backpressure_seconds, run.prefill_wait_seconds)),  # all hosts wait at the same time
    )


def _memory(value: HostStatus) -> str:
    """Return `8 x 71 of 141 GiB`, with the memory of the fullest GPU."""
    gpus = value.standing.gpus
    if not gpus:
        return ""
    fullest = max(gpus, key=lambda gpu: gpu.used_bytes)
    return f"{len(gpus)} x {fullest.used_bytes / (1 << 30):.0f} of {fullest.total_bytes / (1 << 30):.0f} GiB"


def _servers(result: ServersResult) -> str:
    """Return `extract ready`, or `a: extract ready, b: extract ready` for several servers."""
    several = len(result.servers) > 1
    said = [
        (f"{report.state.name}: " if several else "") + f"{report.state.mode} {report.state.status}"
        for report in result.servers
    ]
    return ", ".join(said) or "none"


def _reopened(reopened: ReopenResult) -> str:
    return f"{reopened.records:,}" + (f" ({_causes(reopened.causes)})" if reopened.causes else "")


def _retry(run: str, task: str) -> str:
    command = f"inv {task} --hosts all --run {run} --retry-quarantined"
    return f"Repair the cause, then `{command}` tries the quarantined records again."


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


def show_left_behind(output: Output, working: dict[str, list[RunStatus]], *, dry_run: bool) -> None:
    """Name the runs with open records whose servers were (with `dry_run`: would be) stopped, and how to continue."""
    waits = "would then wait" if dry_run else "waits"
    for host, runs in working.items():
        for run in runs:
            counts = run.state.counts
            left = counted(counts.assigned - _finished(counts) - counts.quarantined, "record")
            output.note(
                f"{host}: the run {run.run!r} is working with {left} left and {waits} for a server. inv serve lets it "
                f"continue; inv extract --run {run.run} --stop ends it."
            )
