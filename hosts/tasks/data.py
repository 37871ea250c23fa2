"""Tasks that make a dataset and a plan: `prepare`, `inspect`, `plan`."""

from __future__ import annotations

import datetime
import json as jsonlib
from pathlib import Path
from typing import Any, Literal, cast

from invoke.context import Context

from hosts.commands import plan as planning
from hosts.commands import prepare as preparing
from hosts.console.data import plan_document, show_inspected, show_plan, show_prepared
from hosts.console.live import live_lines
from hosts.console.output import EXIT_FAILED
from hosts.errors import UsageError
from hosts.tasks.clusters import ONE_JOB, Job, job_or
from hosts.tasks.places import PLACES, demand, places, show_places
from hosts.tasks.session import JSON, TARGET, finish, indices, roost_task, session
from hosts.transport.backend import Backend
from remote.shared.messages.dataset import InspectRequest, PrepareRequest, PrepareResult

_TOKENIZER = {
    "tokenizer": "folder of the model or tokenizer (default: the `model` of the host that runs this)",
    "trust_remote_code": "let the tokenizer's folder run code of its own",
}


@roost_task(
    PLACES,
    ONE_JOB,
    _TOKENIZER,
    JSON,
    iterable=["input", "ignore"],
    input="a file (.jsonl, .json, .parquet, .arrow; also .gz, .zst, .bz2, .xz), a folder, or an address in a bucket; "
    "may be given several times",
    out="the dataset's folder, which this command creates",
    seed="seed of the shuffle",
    keep_order="do not shuffle: indices follow the sources",
    max_len="longest record in tokens (default: no limit)",
    too_long="what to do with longer records: drop or truncate",
    min_len="shortest record in tokens",
    bad="what to do with an unusable record: error (names it and stops) or drop (counts it)",
    chosen="read the chosen answers of preference pairs (chosen, rejected)",
    keys="your records' own keys, as in prompt=ask,answer=reply (also system, reasoning, messages, tools)",
    ignore="a key of messages to leave out on purpose; may be given several times",
    template_options="further variables of the chat template, as JSON",
    date="day for templates that write today's date, as in 2026-01-31 (default: today)",
    processes="worker processes (default: one for each core)",
    example="inv prepare --input chats.jsonl --out data/kimi --tokenizer ~/kimi-tokenizer --max-len 16k",
)
def prepare(
    context: Context,
    out: str = "",
    input: list[str] | None = None,
    tokenizer: str | None = None,
    host: str | None = None,
    hosts: str | None = None,
    seed: int = 0,
    keep_order: bool = False,
    max_len: int = 0,
    too_long: str = "drop",
    min_len: int = 2,
    bad: str = "error",
    chosen: bool = False,
    keys: str = "",
    ignore: list[str] | None = None,
    template_options: str = "{}",
    date: str = "",
    processes: int = 0,
    trust_remote_code: bool = False,
    cluster: str = "",
    detach: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Make a dataset of conversations: merge, dedup, shuffle, chat template, loss mask, global indices."""
    job = Job(cluster, detach=detach, dry_run=dry_run)
    with job_or(places, job, host, hosts, inventory, json, detach=detach, dry_run=dry_run) as (fleet, output):
        known = [preparing.tokenizer_of(fleet.inventory, each, tokenizer) for each in fleet.hosts]
        demand(
            "inv prepare --input chats.jsonl --out data/kimi --tokenizer /models/kimi-k2.5",
            input=input,
            out=out,
            tokenizer=all(known),
        )
        for option, number in (("--max-len", max_len), ("--min-len", min_len), ("--processes", processes)):
            _not_negative(option, number)
        settings = PrepareRequest(
            inputs=list(input or []),
            out=out,
            tokenizer="",
            seed=None if keep_order else seed,
            max_len=max_len or None,
            too_long=cast(Literal["drop", "truncate"], one_of(too_long, "--too-long", ("drop", "truncate"))),
            min_len=min_len,
            bad=cast(Literal["error", "drop"], one_of(bad, "--bad", ("error", "drop"))),
            chosen=chosen,
            keys=preparing.own_keys(keys),
            ignore=list(ignore or []),
            template_options=template_options_of(template_options),
            date=day(date),
            trust_remote_code=trust_remote_code,
            processes=processes or None,
        )

        def one(backend: Backend) -> PrepareResult:
            there = backend.host
            paths = {
                "inputs": [preparing.local_path(there, path) for path in settings.inputs],
                "out": preparing.local_path(there, settings.out),
                "tokenizer": preparing.tokenizer_of(fleet.inventory, there, tokenizer),
            }
            return preparing.prepare(backend, settings.model_copy(update=paths), lines)

        with live_lines(output, fleet) as lines:
            outcomes = fleet.each(one)
        finish(show_places(output, fleet, outcomes, show_prepared))


@roost_task(
    PLACES,
    _TOKENIZER,
    JSON,
    dataset="the dataset's folder",
    records="indices separated by commas, as in 0,17,203",
    example="inv inspect --dataset data/kimi --records 0,17",
)
def inspect(
    context: Context,
    dataset: str = "",
    records: str = "0",
    tokenizer: str | None = None,
    host: str | None = None,
    hosts: str | None = None,
    trust_remote_code: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show records of a dataset as a trainer sees them, with the tokens that count for the loss coloured."""
    with places(host, hosts, inventory, json) as (fleet, output):
        demand("inv inspect --dataset data/kimi --records 0,17", dataset=dataset)
        wanted = indices(records)

        def one(backend: Backend) -> preparing.Inspected:
            path = preparing.local_path(backend.host, dataset)
            request = InspectRequest(
                dataset=path, indices=wanted, tokenizer=tokenizer, trust_remote_code=trust_remote_code
            )
            return preparing.inspect(backend, request)

        with live_lines(output, fleet):
            outcomes = fleet.each(one)
        finish(show_places(output, fleet, outcomes, show_inspected))


@roost_task(
    TARGET,
    JSON,
    dataset="the dataset's folder on this laptop",
    run="name of the run (default: the dataset folder's name)",
    rate="tokens per second of each host, if no speed was measured yet",
    freeing="plan for pull --follow --free: shards leave the hosts during the extraction, so disks need not hold all",
    anew="begin another run under the name of a planned run; the earlier plan is kept",
    force="with --anew: plan even if records of the earlier run are finished",
    changes=True,
    example="inv plan --hosts all --dataset data/kimi --run kimi-1",
)
def plan(
    context: Context,
    dataset: str = "",
    host: str | None = None,
    hosts: str | None = None,
    run: str = "",
    rate: float = 0.0,
    freeing: bool = False,
    anew: bool = False,
    force: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Share a dataset out to the hosts by tokens; say how many bytes and hours it takes, and whether it fits."""
    with session(host, hosts, inventory, json) as (fleet, output):
        demand("inv plan --hosts all --dataset data/kimi --run kimi-1", dataset=dataset)
        _not_negative("--rate", rate)
        folder = Path(dataset).expanduser()
        name = run or folder.absolute().name
        planned = planning.plan(fleet, folder, name, rate=rate or None, freeing=freeing, anew=anew, force=force)
        output.document(plan_document(planned))
        show_plan(output, planned)
        finish(0 if planned.fits else EXIT_FAILED)


def _not_negative(option: str, number: float) -> None:
    if not number >= 0:
        raise UsageError(f"{option} is {number:g}; it cannot be below 0.")


def one_of(value: str, option: str, known: tuple[str, ...]) -> str:
    """Return the value of an option with a few possible words; raises UsageError for any other."""
    if value not in known:
        raise UsageError(f"{option} is {value!r}, but must be {' or '.join(known)}.")
    return value


def template_options_of(text: str) -> dict[str, Any]:
    """Return variables of the chat template from JSON; raises UsageError if it is no object."""
    try:
        values = jsonlib.loads(text)
    except ValueError as error:
        raise UsageError(f"--template-options is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise UsageError('--template-options must be an object, as in {"enable_thinking": false}.')
    return values


def day(text: str) -> str:
    """Return an ISO day, or ""; raises UsageError for any other text."""
    try:
        return datetime.date.fromisoformat(text).isoformat() if text else ""
    except ValueError as error:
        raise UsageError(f"--date {text!r} is not a day such as 2026-01-31.") from error
