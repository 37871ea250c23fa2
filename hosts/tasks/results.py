"""Tasks on what came back: `verify`, `export`."""

from __future__ import annotations

from typing import cast

from invoke.context import Context

from hosts.commands import export as exporting
from hosts.commands import prepare as preparing
from hosts.commands import verify as verifying
from hosts.commands.extract import newest_run
from hosts.console.live import live_lines
from hosts.console.output import EXIT_FAILED, Output
from hosts.console.verify import show_exported, show_faults, verdict
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.plan.plan import load, plan_path
from hosts.tasks.data import data_session
from hosts.tasks.session import JSON, TARGET, finish, roost_task, session
from remote.messages.export import ExportRequest, Format
from remote.messages.verify import Fault, VerifyRequest, VerifyResult

FORMATS = ("speculators", "speculators-v1", "specforge", "model-optimizer")


@roost_task(
    TARGET,
    JSON,
    folder="a destination on this laptop (what inv pull --to was given)",
    run="instead: a run on its hosts, checked where the shards lie",
    model="a model folder: also compare a sample with what transformers computes",
    quick="names, sizes and headers only: seconds instead of reading every byte",
    repair="queue exactly the wrong records again",
)
def verify(
    context: Context,
    folder: str = "",
    run: str = "",
    host: str | None = None,
    hosts: str | None = None,
    model: str = "",
    quick: bool = False,
    repair: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Check every shard: digest, shape, dtype, finite, token ids; holes and strangers; exit 1 on any fault."""
    if folder:
        _verify_folder(folder, run, hosts or host, model, quick, repair, inventory, json)
        return
    with session(host, hosts, inventory, json) as (fleet, output):
        name = run or newest_run(fleet)
        faults: list[tuple[str, Fault]] = []
        request = VerifyRequest(run=name, model=model, digests=not quick)
        with live_lines(output, fleet) as lines:
            outcomes = verifying.verify_run(fleet, request, lambda place, fault: faults.append((place, fault)), lines)
        code = output.outcomes(outcomes, verdict, lambda result: bool(result.faults))
        show_faults(output, faults)
        if repair:
            for done in verifying.repair_run(fleet, name, outcomes):
                output.note(f"{done.host.name}: {done.error or f'{done.result.records} records queued again'}")
        finish(code)


def _verify_folder(
    folder: str,
    run: str,
    hosts: str | None,
    model: str,
    quick: bool,
    repair: bool,
    inventory: str | None,
    json: bool,
) -> None:
    if repair and not hosts:
        hosts = "all"
    with data_session(hosts if repair else None, inventory, json, many=True) as (fleet, output):
        path = preparing.local_paths(fleet, fleet.local, [folder])[0]
        faults: list[tuple[str, Fault]] = []
        here = preparing.local_paths(fleet, fleet.local, [model])[0] if model else ""
        request = VerifyRequest(folder=path, model=here, digests=not quick)
        with live_lines(output, fleet) as lines:
            result = verifying.verify_folder(
                fleet.local, request, lambda place, fault: faults.append((place, fault)), lines
            )
        found = [fault.model_dump(mode="json") for _, fault in faults]
        output.document({**result.model_dump(mode="json"), "found": found})
        show_faults(output, faults)
        output.line(verdict(result))
        if repair and result.requeue:
            _repair(fleet, output, path, run, result)
        finish(0 if result.complete else EXIT_FAILED)


def _repair(fleet: Fleet, output: Output, folder: str, run: str, result: VerifyResult) -> None:
    plan = load(plan_path(fleet.inventory.path.absolute().parent, run or newest_run(fleet)))
    for done in verifying.repair_folder(fleet, plan, fleet.local, folder, result.requeue):
        output.note(f"{done.host.name}: {done.error or f'{done.result.records} records queued again'}")
    output.note("Then: inv extract makes them, inv pull brings them.")


@roost_task(
    {"host": "the host where the destination is (default: this laptop)", "inventory": TARGET["inventory"]},
    JSON,
    folder="the destination (what inv pull --to was given)",
    out="the export's folder, made new",
    format=f"one of: {', '.join(FORMATS)} (default: the inventory's)",
    model="the model's folder, where the format wants the state after the last norm",
    partial="export what is there although records are missing",
    processes="worker processes (default: one a core)",
)
def export(
    context: Context,
    folder: str = "",
    out: str = "",
    format: str = "",
    model: str = "",
    partial: bool = False,
    processes: int = 0,
    host: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Write a destination's records in the layout of a trainer, with its side files and a card."""
    with data_session(host, inventory, json) as (fleet, output):
        backend = preparing.where(fleet)
        chosen = format or fleet.inventory.local.format
        if chosen not in FORMATS:
            raise UsageError(f"There is no format {chosen!r}.", remedy=f"Formats: {', '.join(FORMATS)}.")
        if not folder or not out:
            raise UsageError("An export needs --folder (a destination) and --out.")
        paths = preparing.local_paths(fleet, backend, [folder, out])
        request = ExportRequest(
            folder=paths[0],
            out=paths[1],
            format=cast(Format, chosen),
            model=preparing.local_paths(fleet, backend, [model])[0] if model else "",
            partial=partial,
            processes=processes or None,
        )
        with live_lines(output, fleet) as lines:
            result = exporting.export(backend, request, lines)
        output.document(result.model_dump(mode="json"))
        show_exported(output, result)
