"""The task that has the model answer prompts: `answer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from invoke.context import Context

from hosts.commands import answer as answering
from hosts.commands import extract as extraction
from hosts.commands.answer import Asked, PlannedAnswers
from hosts.commands.prepare import own_keys
from hosts.console.answers import show_planned, show_table
from hosts.console.extraction import show_preview
from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.tasks.data import day, one_of, template_options_of
from hosts.tasks.notifying import NOTIFY
from hosts.tasks.session import DRY_RUN, JSON, TARGET, chosen_run, finish, indices, roost_task, session
from hosts.tasks.working import WORK_OPTIONS, begin, delivered_to, refuse_other_task, steer, teller_of, wish_of
from remote.shared.messages.answers import MARKS


@roost_task(
    TARGET,
    JSON,
    DRY_RUN,
    NOTIFY,
    WORK_OPTIONS,
    iterable=["input", "stop_string", "ignore"],
    input="the prompts: any input of inv prepare, prompts without answers, or .txt files with one prompt on each line",
    run="name of the run (default: the one planned last)",
    tokenizer="folder of the model or its tokenizer on this laptop (default: the hosts' `model`, if it is here)",
    trust_remote_code="let the tokenizer's folder run code of its own",
    turns="which turns of a conversation are answered: last, or all (each sees the new answers to the earlier turns)",
    samples="how many answers each prompt gets",
    temperature="sampling temperature (default: the model's, from its generation_config.json)",
    top_p="nucleus sampling: keep the likeliest tokens up to this probability (default: the model's)",
    top_k="sample from this many likeliest tokens; -1 for all (default: the model's)",
    min_p="sample no token below this share of the likeliest token's probability (default: the model's)",
    repetition_penalty="factor against tokens that have occurred; 1 for none (default: the model's)",
    presence_penalty="penalty subtracted from tokens that have occurred; 0 for none",
    max_tokens="longest answer in tokens (default: the model's, else 4096)",
    stop_string="text that ends an answer; may be given several times",
    seed="seed of sampling, from which the seed of every turn is derived",
    logprobs="keep the logprob of each sampled token",
    too_long="what inv prepare does with answers cut at --max-tokens: mark, keep or drop them",
    drop="answers that inv prepare leaves out: any of empty, repeating, refused, length, separated by commas",
    last_only="if a conversation becomes several records, keep only the last record",
    bad="what to do with an unusable prompt: error (names it and stops) or drop (counts it)",
    keys="your records' own keys, as in prompt=ask",
    ignore="a key of messages to leave out on purpose; may be given several times",
    template_options="further variables of the chat template, as JSON",
    date="day for templates that write today's date, as in 2026-01-31 (default: today)",
    concurrency="conversations in flight on each server (default: an eighth more than the server runs at once)",
    to="folder that the answers are pulled to; a lost host's prompts are not answered again if it has their answers",
    dataset="the folder of the run's prompts, if it is not where the plan says",
    example="inv answer --hosts all --input prompts.jsonl --run answers-1",
)
def answer(
    context: Context,
    input: list[str] | None = None,
    run: str = "",
    host: str | None = None,
    hosts: str | None = None,
    tokenizer: str | None = None,
    turns: str = "",
    samples: int = 0,
    temperature: str = "",
    top_p: str = "",
    top_k: int = 0,
    min_p: str = "",
    repetition_penalty: str = "",
    presence_penalty: str = "",
    max_tokens: int = 0,
    stop_string: list[str] | None = None,
    seed: str = "",
    logprobs: bool = False,
    too_long: str = "",
    drop: str = "",
    last_only: bool = False,
    bad: str = "error",
    keys: str = "",
    ignore: list[str] | None = None,
    template_options: str = "",
    date: str = "",
    concurrency: int = 0,
    trust_remote_code: bool = False,
    detach: bool = False,
    pause: bool = False,
    resume: bool = False,
    stop: bool = False,
    retry_quarantined: bool = False,
    records: str = "",
    to: str = "",
    dataset: str = "",
    then: str = "",
    yes: bool = False,
    notify: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Have the model answer prompts on every host, detached; the sampled token ids are kept as they are.

    The first call plans the run; the same command later resumes it. `inv pull` brings the answers, and
    `inv prepare --input FOLDER` makes training records of their token ids without tokenizing again.
    """
    with session(host, hosts, inventory, json) as (fleet, output):
        wish = wish_of(
            pause=pause, resume=resume, stop=stop, then=then, retry_quarantined=retry_quarantined, records=records
        )
        if input and not run:
            raise UsageError(
                "--run is missing.", remedy="As in: inv answer --hosts all --input prompts.jsonl --run a-1"
            )
        run = chosen_run(fleet, output, run)
        if wish and not dry_run:
            finish(steer(fleet, output, run, wish))
            return
        numbers = {
            "temperature": _number("--temperature", temperature, 0, 100),
            "top_p": _number("--top-p", top_p, 0, 1),
            "min_p": _number("--min-p", min_p, 0, 1),
            "repetition_penalty": _number("--repetition-penalty", repetition_penalty, 0, 2),
            "presence_penalty": _number("--presence-penalty", presence_penalty, -2, 2),
            "seed": _whole("--seed", seed),
            "top_k": _at_least("--top-k", top_k, -1),
            "max_tokens": _at_least("--max-tokens", max_tokens, 1),
            "samples": _at_least("--samples", samples, 1),
        }
        words: dict[str, Any] = {
            "turns": one_of(turns, "--turns", ("all", "last")) if turns else None,
            "too_long": one_of(too_long, "--too-long", ("mark", "keep", "drop")) if too_long else None,
            "drop": _marks(drop),
            "stop": tuple(stop_string or []) or None,
            "logprobs": logprobs or None,
            "last_only": last_only or None,
            "template_options": tuple(sorted(template_options_of(template_options).items()))
            if template_options
            else None,
            "date": day(date) or None,
        }
        asked = Asked(
            sampling={name: value for name, value in {**numbers, **words}.items() if value is not None},
            inputs=list(input or []),
            tokenizer=tokenizer,
            bad=one_of(bad, "--bad", ("error", "drop")),
            keys=own_keys(keys, prompts=True),
            ignore=list(ignore or []),
            trust_remote_code=trust_remote_code,
            concurrency=_at_least("--concurrency", concurrency, 1),
        )
        planned = _planned(fleet, output, run, asked, dry_run=dry_run)
        reopen = extraction.Reopening(indices(records)) if retry_quarantined else None
        source = Path(dataset) if dataset else None
        if dry_run:
            _preview(fleet, output, planned, wish, to, reopen, source)
            return

        def at_end() -> None:
            table, outcomes = answering.table(fleet, planned.plan)
            show_table(output, table, outcomes)

        code = begin(
            fleet,
            output,
            run,
            what="answering",
            detach=detach,
            yes=yes,
            teller=teller_of(fleet, output, run, notify),
            dataset=source,
            then_stop=True if then else None,
            delivered=delivered_to(fleet, run, to),
            reopen=reopen,
            at_end=at_end,
        )
        finish(code)


def _planned(fleet: Fleet, output: Output, run: str, asked: Asked, *, dry_run: bool) -> PlannedAnswers:
    planned = answering.planned_before(fleet, run, asked)
    if planned is not None:
        refuse_other_task(planned.plan, "answer")
        return planned
    with live_lines(output, fleet) as lines:
        planned = answering.plan(fleet, run, asked, lines, dry_run=dry_run)
    if not output.as_json:
        show_planned(output, planned)
    return planned


def _preview(
    fleet: Fleet,
    output: Output,
    planned: PlannedAnswers,
    wish: str,
    to: str,
    reopen: extraction.Reopening | None,
    source: Path | None,
) -> None:
    """Print what a start would do. For a run without a plan, the printed plan says everything."""
    plan = planned.plan
    if planned.prompts is not None:
        shares = {share.host: {"prompts": share.records, "expected_tokens": share.tokens} for share in plan.shares}
        output.document({"run": plan.run, "sampling": planned.settings.model_dump(mode="json"), "hosts": shares})
        return
    delivered = delivered_to(fleet, plan.run, to)
    finish(show_preview(output, extraction.preview(fleet, plan.run, delivered, reopen, source), wish))


def _number(option: str, text: str, low: float, high: float) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise UsageError(f"{option} is {text!r}; it can be {low:g} to {high:g}.")
    return value


def _whole(option: str, text: str) -> int | None:
    try:
        return int(text) if text else None
    except ValueError as error:
        raise UsageError(f"{option} is {text!r}, which is not a whole number.") from error


def _at_least(option: str, value: int, low: int) -> int | None:
    if value < low or (value == 0 and low < 0):
        if value:
            raise UsageError(f"{option} is {value}; it can be {low} or more.")
        return None
    return value or None


def _marks(text: str) -> tuple[str, ...] | None:
    marks = tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))
    unknown = [mark for mark in marks if mark not in MARKS]
    if unknown:
        raise UsageError(f"--drop names {unknown[0]!r}; it can name {', '.join(MARKS)}.")
    return marks or None
