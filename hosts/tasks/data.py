"""Tasks that make a dataset and a plan: `prepare`, `inspect`, `plan`."""

from __future__ import annotations

import datetime
import json as jsonlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

from invoke.context import Context

from hosts.commands import plan as planning
from hosts.commands import prepare as preparing
from hosts.console.data import plan_document, show_drops, show_plan, show_prepared, show_record
from hosts.console.live import live_lines
from hosts.console.output import EXIT_FAILED, Output
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.inventory.load import inventory_path, load_inventory
from hosts.inventory.select import select
from hosts.tasks.session import JSON, TARGET, finish, printing, roost_task, session
from remote.messages.dataset import InspectedRecord, InspectRequest, PrepareRequest

_ONE = {
    "host": "the host where the verb runs and the paths are (default: this laptop)",
    "inventory": TARGET["inventory"],
}
_TOKENIZER = {
    "tokenizer": "folder of the model or its tokenizer (default: the model of the place where it runs)",
    "trust_remote_code": "let the tokenizer's folder run code of its own",
}


@contextmanager
def data_session(
    hosts: str | None, inventory: str | None, json: bool, *, many: bool = False
) -> Iterator[tuple[Fleet, Output]]:
    """A fleet of the host where a data verb is to run (or, with `many`, of hosts), or of none: then on the laptop."""
    with printing(json) as output:
        loaded = load_inventory(inventory_path(inventory))
        chosen = (select(loaded, None, hosts) if many else select(loaded, hosts, None)) if hosts else []
        fleet = Fleet(loaded, chosen)
        try:
            yield fleet, output
        finally:
            fleet.close()


@roost_task(
    _ONE,
    _TOKENIZER,
    JSON,
    iterable=["input"],
    input="a file (.jsonl, .json, .parquet, .arrow) or a folder of them; may be given several times",
    out="the dataset's folder, made new",
    seed="of the shuffle",
    keep_order="do not shuffle: indices follow the sources",
    max_len="longest record in tokens",
    too_long="what happens to longer ones: drop or truncate",
    min_len="shortest record in tokens",
    bad="a record that cannot be used: error (names it and stops) or drop (counts it)",
    template_options="further variables of the chat template, as JSON",
    date="day for templates that write today's date, as in 2026-01-31 (default: today)",
    processes="worker processes (default: one a core)",
)
def prepare(
    context: Context,
    out: str = "",
    input: list[str] | None = None,
    tokenizer: str | None = None,
    host: str | None = None,
    seed: int = 0,
    keep_order: bool = False,
    max_len: int = 0,
    too_long: str = "drop",
    min_len: int = 2,
    bad: str = "error",
    template_options: str = "{}",
    date: str = "",
    processes: int = 0,
    trust_remote_code: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Make a dataset of conversations: merge, dedup, shuffle, chat template, loss mask, global indices."""
    with data_session(host, inventory, json) as (fleet, output):
        backend = preparing.where(fleet)
        request = PrepareRequest(
            inputs=preparing.local_paths(fleet, backend, list(input or [])),
            out=preparing.local_paths(fleet, backend, [_given(out, "--out")])[0],
            tokenizer=preparing.tokenizer_of(fleet, backend, tokenizer),
            seed=None if keep_order else seed,
            max_len=max_len or None,
            too_long=cast(Literal["drop", "truncate"], _one_of(too_long, "--too-long", ("drop", "truncate"))),
            min_len=min_len,
            bad=cast(Literal["error", "drop"], _one_of(bad, "--bad", ("error", "drop"))),
            template_options=_options(template_options),
            date=_day(date),
            trust_remote_code=trust_remote_code,
            processes=processes or None,
        )
        with live_lines(output, fleet) as lines:
            result = preparing.prepare(backend, request, lines)
        output.document(result.model_dump(mode="json"))
        show_prepared(output, result)


@roost_task(
    _ONE, _TOKENIZER, JSON, dataset="the dataset's folder", records="indices separated by commas, as in 0,17,203"
)
def inspect(
    context: Context,
    dataset: str = "",
    records: str = "0",
    tokenizer: str | None = None,
    host: str | None = None,
    trust_remote_code: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show records of a dataset as a trainer sees them, the tokens under the loss coloured."""
    with data_session(host, inventory, json) as (fleet, output):
        backend = preparing.where(fleet)
        request = InspectRequest(
            dataset=preparing.local_paths(fleet, backend, [_given(dataset, "--dataset")])[0],
            indices=_indices(records),
            tokenizer=tokenizer,
            trust_remote_code=trust_remote_code,
        )
        seen: list[InspectedRecord] = []

        def show(record: InspectedRecord) -> None:
            seen.append(record)
            show_record(output, record)

        result = preparing.inspect(backend, request, show)
        shown = [record.model_dump(mode="json") for record in seen]
        output.document({"manifest": result.manifest.model_dump(mode="json"), "records": shown})
        if not seen:
            show_drops(output, result.manifest)


@roost_task(
    TARGET,
    JSON,
    dataset="the dataset's folder on this laptop",
    run="name of the run (default: the dataset folder's name)",
    rate="tokens a second a host, for the time and where nothing was measured",
    freeing="shards are pulled and freed while others are made, so disks need not hold them all",
    anew="plan a run again that has a plan",
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
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Share a dataset out to the hosts by tokens, and say how many bytes and hours, and whether it fits."""
    with session(host, hosts, inventory, json) as (fleet, output):
        folder = Path(_given(dataset, "--dataset")).expanduser()
        name = run or folder.absolute().name
        planned = planning.plan(fleet, folder, name, rate=rate or None, freeing=freeing, anew=anew)
        output.document(plan_document(planned))
        show_plan(output, planned)
        finish(0 if planned.fits else EXIT_FAILED)


def _given(value: str, option: str) -> str:
    """A required option; as a positional argument, Invoke would take `--help` for its value."""
    if not value:
        raise UsageError(f"{option} is missing.")
    return value


def _one_of(value: str, option: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise UsageError(f"{option} is {value!r}; it can be {' or '.join(known)}.")
    return value


def _options(text: str) -> dict[str, Any]:
    try:
        values = jsonlib.loads(text)
    except ValueError as error:
        raise UsageError(f"--template-options is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise UsageError('--template-options must be an object, as in {"enable_thinking": false}.')
    return values


def _day(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat() if text else ""
    except ValueError as error:
        raise UsageError(f"--date {text!r} is not a day such as 2026-01-31.") from error


def _indices(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UsageError(f"--records {text!r} is not a list of indices such as 0,17,203.") from error
