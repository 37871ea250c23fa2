"""The verb `replica`: serve, claim chunks from the run's queue, extract and publish them, stop. Runs on a node.

The engine (Slurm, Ray) or a person starts it: `python -m remote replica --folder RUN --name R.0 --scratch DIR --output
log`. It knows no engine. SIGUSR1 and SIGTERM drain it: the replica claims no more chunks, finishes the requests in
flight, publishes finished chunks and releases the others. `--tied true` ends it when its stdin ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from remote.context import Context
from remote.replica import guard
from remote.replica.desk import Desk
from remote.shared.errors import HostError, UsageError
from remote.shared.files import write_whole
from remote.shared.leases.queue import idle_seconds
from remote.shared.messages.extract import Control
from remote.shared.messages.replica import ReplicaRequest, ReplicaResult, ReplicaSpec
from remote.shared.messages.server import ServeRequest, StopRequest
from remote.shared.paths import RunPaths, Workdir
from remote.shared.supervised.threads import Thread
from remote.work.epochs import newest_epoch
from remote.work.gathered import in_round, read_spec
from remote.work.launch import run_here
from remote.work.secrets import put_back

PAUSE_SECONDS = 0.5
STOP_SECONDS = 20.0


def replica(request: ReplicaRequest, context: Context) -> ReplicaResult:
    """Work as a replica until the run is over or a signal to drain comes; return what was published."""
    shared = RunPaths(Path(request.folder).expanduser())
    spec = _spec_of(shared)
    shared = in_round(shared, spec)
    scratch = Context(Workdir(Path(request.scratch).expanduser()), context.report, request.name)
    if request.tied:
        Thread(_end_with_stdin, "the tie")
    _end_earlier(scratch)
    with Desk(shared, spec, request.name, scratch) as desk, guard.posted(scratch):
        own = scratch.workdir.run(shared.root.name)
        if not desk.is_over():
            try:
                _serve(put_back(shared, spec), scratch)
                _work(desk, own, spec, scratch)
            finally:
                _end_servers(scratch)
        result = desk.result()
        if result.over:
            shared.over.touch()
            shared.secrets.unlink(missing_ok=True)
        return result


def _spec_of(shared: RunPaths) -> ReplicaSpec:
    """Return the replica's spec; raise UsageError if this node sees an older state of the run's folder."""
    spec = read_spec(shared)
    if newest_epoch(shared) != spec.epoch:
        raise UsageError(f"{shared.replicas} has epoch {spec.epoch}, but the run has epoch {newest_epoch(shared)}.")
    return spec


def _end_with_stdin() -> None:
    """Kill this process once stdin ends. The guard then ends the servers, and the next attempt can start at once."""
    while os.read(0, 4096):
        pass
    print("the process that started this replica is gone, so it ends", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _work(desk: Desk, own: RunPaths, spec: ReplicaSpec, scratch: Context) -> None:
    """Extract the chunks that the desk holds, session by session, until the run is over or the replica drains."""
    looks = 0
    while not desk.draining:
        _drain_on_signals(desk, own)  # a session's event loop takes SIGTERM to itself
        if desk.has_open():
            looks = 0
            state = run_here(own, scratch)
            if state.status == "stopped" and not desk.draining:
                desk.drain()
        elif desk.is_over():
            break
        else:
            _pause(desk, idle_seconds(looks, spec.lease_seconds))
            looks += 1
    desk.publish_all()


def _pause(desk: Desk, seconds: float) -> None:
    """Wait before the next look at the queue. A signal to drain ends the wait soon."""
    until = time.monotonic() + seconds
    while not desk.draining and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, PAUSE_SECONDS))


def _drain_on_signals(desk: Desk, own: RunPaths) -> None:
    def drain(_: int, __: FrameType | None) -> None:
        desk.drain()
        write_whole(own.control, Control(action="stop", at=time.time()).model_dump_json().encode())

    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, drain)


def _serve(spec: ReplicaSpec, scratch: Context) -> None:
    if spec.serve_with:
        command = [*spec.serve_with, str(scratch.workdir.root)]
        started = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, timeout=600)
        if started.returncode:
            raise HostError(f"`{command[0]}`, which starts the servers, ended with {started.returncode}.")
        return
    from remote.servers.lifecycle.serve import serve

    serve(ServeRequest(servers=spec.servers, restart=True), scratch)


def _end_earlier(scratch: Context) -> None:
    """End the servers that an earlier attempt left on this node, because they hold its GPUs, and name them."""
    if not scratch.workdir.servers.is_dir():
        return
    ended = _end_servers(scratch)
    if ended:
        scratch.report.progress(f"ended what an earlier attempt had left on this node: {', '.join(ended)}")


def _end_servers(scratch: Context) -> list[str]:
    from remote.servers.lifecycle.stop import stop

    return stop(StopRequest(grace_seconds=STOP_SECONDS, wait_for_lock=True), scratch).stopped
