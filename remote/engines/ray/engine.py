"""Ray as an engine, on the login host: submit the run's controller as a Ray job, show its replicas, stop them."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from dataclasses import replace
from pathlib import Path

from remote.context import Context
from remote.engines.ray.folder import (
    ENDED,
    FAILED,
    LEFT_OUT,
    NO_REPLICA_LEFT,
    REFUSED,
    SAID,
    Folder,
    Pool,
    Slot,
    in_words,
    write,
)
from remote.engines.ray.server import LIVE, Server
from remote.shared.errors import HostError, UsageError
from remote.shared.leases.chunks import cut
from remote.shared.messages.jobs import JobRow, LookRequest, RayLook, RayPool
from remote.shared.paths import RunPaths
from remote.work.assignment import share_of
from remote.work.gathered import read_spec

ACCEPT_SECONDS = 120.0
"""How long a submitted job may take until its controller has checked the cluster. Ray's workers start slowly."""
LOOK_SECONDS = 0.5
RESTARTS = 20
"""How often a controller that was killed or lost Ray is started again. The replicas work on meanwhile."""

_ENTRYPOINT = """cd {payload} || {{ echo {unseen}; exit {refused}; }}
for start in $(seq {restarts}); do
  {python} -m remote.engines.ray.controller {jobs} {job} {mark}
  code=$?
  case $code in
    0|{refused}|{none_left}) exit $code ;;
    126|127) echo {no_python}; exit $code ;;
  esac
  echo "the controller ended with $code and is started again"
  sleep 1
done
exit 1"""


def look(request: LookRequest, context: Context) -> RayLook:
    """The verb `look`: return Ray's version, and whether anybody who can reach the cluster may run code there."""
    server = Server(request.address)
    return RayLook(version=server.version(), is_open=server.is_open())


class Ray:
    """Ray as an engine for one run's replicas."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths, self._folder = paths, Folder(paths.jobs)

    def text(self, order: RayPool, payload: Path) -> str:
        """Return the submission in the job server's form; raise UsageError if there is no cluster at the address."""
        Server(order.address).version()
        return json.dumps(self._submission(order, payload, "JOB", "MARK"), indent=1)

    def submit(self, order: RayPool, payload: Path) -> str:
        """Submit the controller and wait until it has checked the cluster; raise UsageError if it refuses the run."""
        job = f"roost-{self._paths.root.name}-{secrets.token_hex(4)}"
        spec = read_spec(self._paths)
        chunks = len(cut(share_of(self._paths, spec).lengths().tolist(), spec.chunk_tokens))
        self._folder.forget_ended()
        self._folder.keep_pool(_pool(order, job, self._paths.root.name, payload, chunks))
        return self._start(Server(order.address), order, payload, job)

    def rows(self) -> list[JobRow]:
        """Return the job, the replicas that Ray has placed or will place, and the replicas that ended with a cause."""
        if not self._folder.pool_file.exists():
            return []
        pool = self._folder.pool()
        server = Server(pool.address)
        told = server.job(pool.job)
        slots = {slot.name: slot for slot in self._folder.slots()}
        rows = []
        if told.get("status") in LIVE:
            rows.append(JobRow(job=pool.job, state=str(told["status"]), seconds=_since(told["start_time"] / 1000)))
        elif told.get("status") == "FAILED":
            why = _why(server.log(pool.job), str(told.get("message", ""))).message
            rows.append(JobRow(job=pool.job, state="FAILED", reason=why))
        actors = server.actors(pool.namespace)
        for name in sorted(server.groups(pool.group("")), key=_number):
            rows.append(_row(slots.pop(name, Slot(name)), actors.get(name, {}).get("state", ""), pool))
        lost = [slot for slot in slots.values() if slot.state in (FAILED, LEFT_OUT)]
        return [
            *rows,
            *(JobRow(job=one.name, state=one.state.upper(), node=one.node, reason=one.cause) for one in lost),
        ]

    def earlier(self) -> list[str]:
        """Return the job's name if its controller runs or is in Ray's queue."""
        if not self._folder.pool_file.exists():
            return []
        pool = self._folder.pool()
        return [pool.job] if Server(pool.address).job(pool.job).get("status") in LIVE else []

    def cancel(self, *, dry_run: bool) -> list[str]:
        """Tell every replica through the shared folder to drain. The controller withdraws groups without a replica."""
        rows = self.rows()
        living = [row.job for row in rows if row.state not in (FAILED.upper(), LEFT_OUT.upper())]
        if not living or dry_run:
            return living
        write(self._folder.stop, "")
        if not self.earlier():
            pool = replace(self._folder.pool(), job=f"roost-{self._paths.root.name}-{secrets.token_hex(4)}")
            self._folder.keep_pool(pool)
            order = RayPool.model_validate(json.loads((self._paths.jobs / "order.json").read_text()))
            self._start(Server(pool.address), order, Path(pool.payload), pool.job)
        return living

    def _start(self, server: Server, order: RayPool, payload: Path, job: str) -> str:
        mark = secrets.token_hex(16)
        if self._folder.mark.exists():
            mark = self._folder.mark.read_text()
        write(self._folder.mark, mark)
        write(self._paths.jobs / "order.json", order.model_dump_json())
        submitted = server.submit(self._submission(order, payload, job, mark))
        self._await_accepted(server, submitted)
        return submitted

    def _submission(self, order: RayPool, payload: Path, job: str, mark: str) -> dict[str, object]:
        unseen = (
            f"{SAID}the head node does not see {payload}: the cluster's `workdir` must be on a file system that the "
            "head node, the other nodes and the login host share"
        )
        no_python = f"{SAID}the head node cannot run {order.ray_python}: set `ray_python` to the Python that has Ray"
        entrypoint = _ENTRYPOINT.format(
            payload=shlex.quote(str(payload)),
            unseen=shlex.quote(unseen),
            no_python=shlex.quote(no_python),
            python=shlex.quote(order.ray_python),
            jobs=shlex.quote(str(self._paths.jobs)),
            job=shlex.quote(job),
            mark=shlex.quote(mark),
            refused=REFUSED,
            none_left=NO_REPLICA_LEFT,
            restarts=RESTARTS,
        )
        return {"entrypoint": entrypoint, "submission_id": job, "metadata": {"roost_run": self._paths.root.name}}

    def _await_accepted(self, server: Server, job: str) -> None:
        """Return once the controller controls the run, or still waits for the first node; raise its refusal."""
        deadline = time.monotonic() + ACCEPT_SECONDS
        while time.monotonic() < deadline:
            told = server.job(job)
            if told.get("status") not in LIVE:
                if self._folder.has_accepted(job):
                    return  # a short run, which has ended already
                raise _why(server.log(job), str(told.get("message", "")))
            if self._folder.has_accepted(job):
                return
            time.sleep(LOOK_SECONDS)


def _pool(order: RayPool, job: str, run: str, payload: Path, chunks: int) -> Pool:
    return Pool(
        job=job,
        run=run,
        payload=str(payload),
        chunks=chunks,
        submitted_at=time.time(),
        address=order.address,
        least=order.least,
        most=order.most,
        bundle=order.bundle,
        join_seconds=order.join_seconds,
        python=order.python,
        scratch=order.scratch,
    )


def _row(slot: Slot, actor: str, pool: Pool) -> JobRow:
    """Return the row of a replica that has a placement group, from its actor's state in Ray and its own file."""
    again = f"{slot.failures} of its attempts failed, the latest because {slot.cause}" if slot.failures else ""
    if actor == "ALIVE":
        word = "STARTING" if slot.state not in ENDED and slot.attempt < 0 else "RUNNING"
        return JobRow(job=slot.name, state=word, node=slot.node, reason=again or slot.cause, seconds=_since(slot.since))
    return JobRow(job=slot.name, state="PENDING", reason=f"waits for a node with {in_words(pool.bundle)}")


def _since(began: float) -> str:
    """Return the time since `began` as `H:MM:SS`; "" if it has not begun."""
    if not began:
        return ""
    seconds = max(0, int(time.time() - began))
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _number(name: str) -> int:
    return int(name[1:]) if name[1:].isdecimal() else 0


def _why(log: str, message: str) -> UsageError | HostError:
    """Return the error with the last words of a controller that ended."""
    said = [line.partition(SAID)[2] for line in log.splitlines() if line.startswith(SAID)]
    if said:
        return UsageError(f"{said[-1][:1].upper()}{said[-1][1:].rstrip('.')}.")
    lines = [line for line in log.splitlines() if line.strip()]
    return HostError(
        f"The Ray job ended before it began the run: {(lines or [message or 'it said nothing'])[-1].strip()}.",
        remedy="Ray's dashboard shows its log under Jobs.",
    )
