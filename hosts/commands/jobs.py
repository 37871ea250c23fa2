"""`--cluster` of `prepare`, `verify`, `export` and `compress`: the verb as one job without GPUs. Runs on the laptop."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast, get_args

from pydantic import BaseModel

from hosts.commands.clusters import DEADLINE_SECONDS, wrap_of
from hosts.errors import UsageError
from hosts.fleet import Fleet
from hosts.inventory.clusters import AnyCluster, RayCluster
from hosts.inventory.model import Host
from hosts.transport.backend import DEFAULT_DEADLINE_SECONDS, Backend, OnItem, OnProgress, R
from hosts.transport.call import validated
from hosts.transport.process import Process
from remote.shared.messages.jobs import (
    CancelRequest,
    CancelResult,
    JobRequest,
    JobRow,
    JobsRequest,
    JobsResult,
    JobTold,
    JobVerb,
    SlurmTask,
)

OnBegun = Callable[[JobTold], None]


def job_rows(fleet: Fleet, name: str = "") -> list[JobRow]:
    """Return the jobs that run one verb each and whose outcome nobody has seen; or only the job of this name."""
    (host,) = fleet.hosts
    return fleet.backend(host).call("jobs", JobsRequest(name=name), JobsResult, deadline=DEADLINE_SECONDS).jobs


def cancel_job(fleet: Fleet, name: str, *, dry_run: bool) -> list[str]:
    """End the job of this name and return its name; [] if it has ended already."""
    (host,) = fleet.hosts
    request = CancelRequest(name=name, dry_run=dry_run)
    return fleet.backend(host).call("cancel", request, CancelResult, deadline=DEADLINE_SECONDS).jobs


class HandedOver(Exception):
    """Ends a command that does not wait for its job: `--detach`, or `--dry-run`. No error."""

    def __init__(self, told: JobTold) -> None:
        super().__init__(told.name)
        self.told = told


class JobBackend(Backend):
    """A cluster whose verbs `prepare`, `verify`, `export` and `compress` run as jobs of their own on a node.

    All other verbs run on the login host.
    """

    def __init__(self, login: Backend, order: SlurmTask, *, follow: bool, dry_run: bool, begun: OnBegun) -> None:
        super().__init__(login.host)
        self._login, self._order, self._follow, self._dry_run, self._begun = login, order, follow, dry_run, begun

    def open(self, argv: list[str]) -> Process:
        return self._login.open(argv)

    def close(self) -> None:
        self._login.close()

    def call(
        self,
        verb: str,
        request: BaseModel,
        result: type[R],
        *,
        deadline: float | None = DEFAULT_DEADLINE_SECONDS,
        on_progress: OnProgress | None = None,
        on_item: OnItem | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> R:
        """Run the verb as a job and return its result; raises HandedOver if the command does not wait for it."""
        if verb not in get_args(JobVerb):
            return self._login.call(
                verb, request, result, deadline=deadline, on_progress=on_progress, on_item=on_item, on_sent=on_sent
            )
        asked = JobRequest(
            verb=cast(JobVerb, verb),
            request=request.model_dump(mode="json"),
            order=self._order,
            follow=False,
            dry_run=self._dry_run,
        )
        told = self._login.call("job", asked, JobTold, deadline=DEADLINE_SECONDS, on_progress=on_progress)
        if not self._follow or self._dry_run:
            raise HandedOver(told)
        self._begun(told)
        following = asked.model_copy(update={"follow": True})
        told = self._login.call("job", following, JobTold, deadline=None, on_progress=on_progress, on_item=on_item)
        return validated(result, told.value or {})


def task_of(cluster: AnyCluster, host: Host) -> SlurmTask:
    """Return the order for a job without GPUs; raises UsageError if the cluster's engine has none."""
    if isinstance(cluster, RayCluster):
        raise UsageError(
            f"{cluster.name} is a cluster of Ray, and only Slurm runs this as a job.",
            remedy=f"Type --host {cluster.name} instead of --cluster {cluster.name}: it then runs on the login host.",
        )
    of_cpus = {name: value for name, value in cluster.options.items() if not _asks_for_gpus(name)}
    return SlurmTask(
        options=of_cpus | cluster.cpu, prolog=cluster.prolog, wrap=wrap_of(cluster, gpus=False), python=host.python
    )


def _asks_for_gpus(option: str) -> bool:
    """Whether an option of sbatch belongs to a job that takes whole nodes with their GPUs."""
    return option in ("exclusive", "gres", "gres-flags") or "gpu" in option or option.startswith("tres-per")
