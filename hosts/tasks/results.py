"""Tasks for delivered records: `verify`, `export`."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import cast

from invoke.context import Context

from hosts.commands import prepare as preparing
from hosts.commands import repair as repairing
from hosts.commands import verify as verifying
from hosts.commands.clusters import cluster_host
from hosts.commands.runs import plan_for
from hosts.console.live import live_lines
from hosts.console.output import EXIT_FAILED
from hosts.console.verify import show_exported, show_faults, show_queued, verdict
from hosts.errors import UsageError
from hosts.fleet import Fleet, fleet_of
from hosts.inventory.model import Host
from hosts.inventory.select import select
from hosts.pull.sources import Place, place_of
from hosts.tasks.clusters import ONE_JOB, Job, job_or, refuse_without_cluster
from hosts.tasks.places import PLACES, demand, places, show_places
from hosts.tasks.session import JSON, TARGET, chosen_run, finish, printing, roost_task, session, the_inventory
from hosts.tasks.trailing import note_in_trail
from remote.shared.messages.export import ExportDtype, ExportRequest, ExportResult, Format
from remote.shared.messages.run import refuse_other_run
from remote.shared.messages.verify import Fault, VerifyRequest

FORMATS = ("speculators", "speculators-v1", "specforge", "model-optimizer")


def export_dtype(dtype: str) -> ExportDtype:
    """Return the dtype of `--dtype`; raises UsageError for a dtype that no export has."""
    if dtype not in ("", "fp8"):
        raise UsageError(
            f"There is no dtype {dtype!r} to export.",
            remedy="Use --dtype fp8, or leave out --dtype to keep the states as extracted.",
        )
    return cast(ExportDtype, dtype or "extracted")


@roost_task(
    TARGET,
    ONE_JOB,
    JSON,
    {"dry_run": "with --repair: only say what would be queued again; with --cluster: print the job's script"},
    folder="a destination of inv pull --to: a folder on this laptop, or HOST:FOLDER",
    run="a run, checked on its hosts (default: the run planned last)",
    model="a model folder: also compare a sample with what transformers computes",
    quick="check only names, sizes and headers: takes seconds instead of reading every byte",
    repair="queue exactly the wrong records again; with --folder, on the hosts of --hosts (default: all)",
    example="inv verify --folder /data/kimi-1",
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
    cluster: str = "",
    detach: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Check every shard's bytes, shape, values and ids; name missing and unknown files; exit code 1 on any fault."""
    if dry_run and not (repair or cluster):
        with printing(json):
            raise UsageError("--dry-run needs --repair: a verification changes nothing.")
    if detach and repair:
        with printing(json):
            raise UsageError("--repair needs the outcome of the verification.", remedy="Leave out --detach.")
    job = Job(cluster, detach=detach, dry_run=dry_run and not repair)
    if folder:
        _verify_folder(folder, run, host, hosts, model, quick, repair, dry_run, job, inventory, json)
        return
    with job_or(session, job, host, hosts, inventory, json, detach=detach) as (fleet, output):
        name = chosen_run(fleet, output, run)
        faults: list[tuple[str, Fault]] = []
        plan = plan_for(fleet, name)
        request = VerifyRequest(run=plan.identity, model=model, digests=not quick)
        with live_lines(output, fleet) as lines:
            outcomes = verifying.verify_run(fleet, request, lambda place, fault: faults.append((place, fault)), lines)
        code = output.outcomes(
            outcomes,
            verdict,
            lambda result: bool(result.faults),
            amiss="some records are wrong",
            details=partial(show_faults, output, faults),
        )
        if repair:
            show_queued(output, repairing.repair_run(fleet, plan, outcomes, dry_run=dry_run), dry_run=dry_run)
        finish(code)


def _verify_folder(
    folder: str,
    run: str,
    host: str | None,
    hosts: str | None,
    model: str,
    quick: bool,
    repair: bool,
    dry_run: bool,
    job: Job,
    inventory: str | None,
    json: bool,
) -> None:
    """Check a destination on the host that holds it; with `repair`, `hosts` extract the wrong records again."""
    with printing(json) as output:
        named = host is not None or hosts is not None
        refuse_without_cluster(json, detach=job.detach and not job.cluster)
        if run:
            raise UsageError(
                "With --folder, the folder itself says which run it holds, so --run has no meaning.",
                remedy="Leave out --run; or leave out --folder to check a run on its hosts.",
            )
        if not repair and named:
            raise UsageError(
                "With --folder, --hosts says where --repair queues the wrong records again.",
                remedy="Leave out --folder to check a run on its hosts, or use --folder HOST:FOLDER.",
            )
        loaded = the_inventory(output, inventory)
        place = place_of(Fleet(loaded, []), folder) or Place(loaded.local, folder)
        if job.cluster:
            place = Place(cluster_host(loaded, job.cluster)[1], folder)
        note_in_trail(loaded.path, [place.host.name], output)
        with (
            fleet_of(loaded, [place.host]) as there,
            fleet_of(loaded, select(loaded, host, hosts if named else "all") if repair else []) as makers,
            job.of(there, output) if job.cluster else nullcontext(),
        ):
            backend = there.backend(place.host)
            path = preparing.local_path(place.host, place.folder)
            faults: list[tuple[str, Fault]] = []
            here = preparing.local_path(place.host, model) if model else ""
            request = VerifyRequest(folder=path, model=here, digests=not quick)
            with live_lines(output, there) as lines:
                result = verifying.verify_folder(
                    backend, request, lambda place, fault: faults.append((place, fault)), lines
                )
            found = [fault.model_dump(mode="json") for _, fault in faults]
            output.document({**result.model_dump(mode="json"), "found": found})
            show_faults(output, faults)
            output.line(verdict(result))
            if repair and result.requeue:
                plan = plan_for(makers, result.identity.name)
                refuse_other_run(
                    folder, result.identity, plan.identity, "Take that run's own plan from its hosts: inv runs --take."
                )
                queued = repairing.repair_folder(makers, plan, backend, path, result.requeue, dry_run=dry_run)
                show_queued(output, queued, dry_run=dry_run)
            finish(0 if result.complete else EXIT_FAILED)


@roost_task(
    PLACES,
    ONE_JOB,
    JSON,
    folder="the destination of inv pull --to",
    out="the export's folder, which this command creates",
    format=f"one of: {', '.join(FORMATS)} (default: the inventory's)",
    dtype="fp8: float8 states with scales, half the size, for speculators 0.9 (default: as they were extracted)",
    model="the model's folder, if the format wants the state after the last norm",
    partial="export the present records even if others are missing",
    processes="worker processes (default: one for each core)",
    example="inv export --folder /data/kimi-1 --out /data/kimi-1-specforge --format specforge",
)
def export(
    context: Context,
    folder: str = "",
    out: str = "",
    format: str = "",
    dtype: str = "",
    model: str = "",
    partial: bool = False,
    processes: int = 0,
    host: str | None = None,
    hosts: str | None = None,
    cluster: str = "",
    detach: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Write a destination's records in the layout of a trainer, with its side files and a card."""
    job = Job(cluster, detach=detach, dry_run=dry_run)
    with job_or(places, job, host, hosts, inventory, json, detach=detach, dry_run=dry_run) as (fleet, output):
        demand("inv export --folder /data/kimi-1 --out /data/kimi-1-export", folder=folder, out=out)
        if format and format not in FORMATS:
            raise UsageError(f"There is no format {format!r}.", remedy=f"Formats: {', '.join(FORMATS)}.")
        wanted = export_dtype(dtype)
        if processes < 0:
            raise UsageError(f"--processes is {processes}; it cannot be below 0.")

        def request(there: Host) -> ExportRequest:
            return ExportRequest(
                folder=preparing.local_path(there, folder),
                out=preparing.local_path(there, out),
                format=cast(Format, format or there.format),
                dtype=wanted,
                model=preparing.local_path(there, model) if model else "",
                partial=partial,
                processes=processes or None,
            )

        with live_lines(output, fleet) as lines:
            outcomes = fleet.call("export", request, ExportResult, deadline=None, on_progress=lines)
        finish(show_places(output, fleet, outcomes, show_exported))
