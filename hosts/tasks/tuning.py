"""Tasks for modes and speed: `diff-modes`, `bench`, `tune`."""

from __future__ import annotations

from invoke.context import Context

from hosts.bench.compare import FEWEST_VALUES
from hosts.commands import bench as benching
from hosts.commands import tune as tuning
from hosts.console.bench import bench_line, show_comparison, show_measurements
from hosts.console.live import live_lines
from hosts.console.tune import search_line, show_search, show_tuned, tuned_line
from hosts.errors import UsageError
from hosts.inventory.kept import Kept
from hosts.inventory.load import inventory_path
from hosts.inventory.modes import diff_modes as differences_of
from hosts.tasks.session import DRY_RUN, JSON, TARGET, finish, printing, roost_task, session
from hosts.tune.search import Plan
from remote.shared.messages.bench import BenchRequest
from remote.shared.messages.envelope import Progress


@roost_task(
    TARGET,
    JSON,
    name="diff-modes",
    first="a mode of the inventory",
    second="another mode",
    example="inv diff-modes --host gpu1 --first serve --second extract",
)
def diff_modes(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    first: str = "serve",
    second: str = "extract",
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show the differences between two modes, and the reason for each setting."""
    with session(host, hosts, inventory, json) as (fleet, output):
        found = {each.name: differences_of(each, first, second) for each in fleet.hosts}
        output.document({name: [row.model_dump() for row in rows] for name, rows in found.items()})
        for name, rows in found.items():
            cells = [(row.setting, row.first, row.second, row.why) for row in rows]
            if rows:
                output.table(("setting", first, second, "why"), cells, title=name)
            else:
                output.line(f"{name}: {first} and {second} do not differ")


@roost_task(
    TARGET,
    JSON,
    server="which of the host's servers to measure",
    mode="run the server in this mode for the measurement, then restore it (default: measure it as it runs)",
    profile="single, prefill, concurrent, or several separated by commas (default: all)",
    repetitions="how often each profile is measured after a warm-up",
    label="name to keep the result under (default: mode and time)",
    prompt_tokens="length of the random prompts for single and concurrent",
    output_tokens="tokens generated for each prompt",
    concurrency="requests at once for concurrent",
    compare="compare the kept results A,B instead of measuring; with a * a side is several measurements",
    changes=True,
    example="inv bench --host gpu1 --mode serve --label before",
)
def bench(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    server: str = "main",
    mode: str = "",
    profile: str = "",
    repetitions: int = 5,
    label: str = "",
    prompt_tokens: int = 256,
    output_tokens: int = 128,
    concurrency: str = "1,8,64",
    compare: str = "",
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Measure a ready server with SGLang's own load generator, or compare two results: faster, slower or noise."""
    if compare:
        _compare(compare, inventory, json)
        return
    with session(host, hosts, inventory, json) as (fleet, output):
        _check_least(repetitions=(repetitions, 1), prompt_tokens=(prompt_tokens, 1), output_tokens=(output_tokens, 1))
        request = BenchRequest(
            server=server,
            profiles=benching.profiles(profile),
            repetitions=repetitions,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            concurrency=_numbers(concurrency),
        )
        with live_lines(output, fleet) as lines:
            outcomes = benching.bench(fleet, request, mode=mode, label=label, on_progress=lines, note=output.note)
        code = output.outcomes(outcomes, bench_line)
        show_measurements(output, outcomes)
        finish(code)


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    mode="the mode to tune",
    goal="what to make fast, decode or prefill",
    confirm="how many of the best NCCL settings get real servers, each with every combination of the grid's flags",
    repetitions="repetitions of each confirming measurement",
    deadline="seconds that the benchmark of collectives may take under one setting",
    fresh="discard an unfinished search instead of resuming it",
    apply="write the winner into the inventory (comments and order are kept)",
    example="inv tune --host gpu1 --goal decode --dry-run",
)
def tune(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    mode: str = "serve",
    goal: str = "decode",
    confirm: int = 3,
    repetitions: int = 5,
    deadline: float = 60.0,
    fresh: bool = False,
    apply: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Find the NCCL settings and all-reduce flags that serve fastest; the result is never slower than the current."""
    with session(host, hosts, inventory, json) as (fleet, output):
        if goal not in ("decode", "prefill"):
            raise UsageError(f"There is no goal {goal!r}.", remedy="Use decode or prefill.")
        _check_least(confirm=(confirm, 1), repetitions=(repetitions, FEWEST_VALUES), deadline=(deadline, 1))
        plan = Plan(mode, "decode" if goal == "decode" else "prefill", confirm, repetitions, deadline, fresh)
        if dry_run:
            would = tuning.planned(fleet, plan)
            code = output.outcomes(would, search_line)
            for outcome in would:
                if outcome.ok:
                    show_search(output, outcome.host.name, outcome.result)
            finish(code)
            return
        with live_lines(output, fleet) as lines:
            outcomes = tuning.tune(fleet, plan, lambda each, text: lines(each, Progress(text=text)), output.note)
        code = output.outcomes(outcomes, tuned_line)
        tuned = [outcome.result for outcome in outcomes if outcome.ok]
        for result in tuned:
            show_tuned(output, result)
        if apply:
            output.note(f"Written to {fleet.inventory.path}: {', '.join(tuning.apply(fleet, tuned)) or 'no change'}.")
        finish(code)


def _compare(names: str, inventory: str | None, json: bool) -> None:
    with printing(json) as output:
        first, _, second = names.partition(",")
        if not first or not second:
            raise UsageError("--compare needs two results.", remedy="As in --compare gpu1/baseline,gpu1/dormant.")
        rows, differ = benching.compare_kept(
            Kept.beside(inventory_path(inventory)).bench, first.strip(), second.strip()
        )
        output.document({"comparisons": [row.model_dump() for row in rows], "differences": differ})
        show_comparison(output, rows, differ)


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise UsageError(f"{text!r} is not a list of numbers.", remedy="As in 1,8,64.")
    return [int(word) for word in words]


def _check_least(**given: tuple[float, int]) -> None:
    """Raise UsageError for an option whose value is below its minimum."""
    for name, (value, least) in given.items():
        if value < least:
            raise UsageError(f"--{name.replace('_', '-')} is {value:g}, but must be at least {least}.")
