"""The verb `serve`: checks everything first, then starts servers detached and waits until they are really ready.

Runs on the host, called by `inv serve`, `inv restart`, `inv bench` and `inv tune`. Writes `servers/<name>/`, claims the
dump directory, and with `replace` or `restart` stops this workdir's own server of the same name. The servers go on if
this verb is ended.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from remote.context import Context
from remote.lock import host_lock
from remote.servers.housekeeping import dump
from remote.servers.lifecycle import logfile, records
from remote.servers.lifecycle.awaiting import await_ready
from remote.servers.lifecycle.command import Launch, plan_launch
from remote.servers.lifecycle.detach import start_supervisor
from remote.servers.lifecycle.ending import KILL_SECONDS, wait_until
from remote.servers.lifecycle.stopping import stop_server
from remote.servers.probing import memory, pulse
from remote.servers.probing.preflight import check_host, check_neighbours, check_together
from remote.shared.errors import HostError
from remote.shared.messages.server import (
    PlannedStart,
    ServeRequest,
    ServeResult,
    ServerSpec,
    ServerState,
    SuperviseRequest,
)
from remote.shared.processes import MARK, find
from remote.shared.redact import redacted, redacted_spec
from remote.shared.supervised.pools import Pool, in_order
from remote.shared.supervised.tasks import together

ENDING_SECONDS = 2 * KILL_SECONDS


@dataclass(frozen=True)
class Order:
    """One server of the request, and the server that this host already has under its name."""

    launch: Launch
    earlier: ServerState | None
    """The server of this name that runs now, if any."""
    restarts: bool = False
    """A person asked for a restart: a running server is stopped and started again, even with the same command."""

    @property
    def name(self) -> str:
        return self.launch.spec.name

    @property
    def starts(self) -> bool:
        """Return whether anything is started: not if a server with the same command, capture and payload runs."""
        earlier, launch = self.earlier, self.launch
        return self.restarts or not (
            earlier is not None
            and earlier.command == launch.argv
            and earlier.capture == launch.capture
            and earlier.spec == redacted_spec(launch.spec)
        )


def serve(request: ServeRequest, context: Context) -> ServeResult:
    """Start the servers that do not run yet and wait until all are ready; with `dry_run` only say what would happen.

    Raises UsageError or HostError before anything is changed if a start cannot work. Raises HostError with the cause
    and the last lines of the log for a server that ended or was not ready in time.
    """
    if request.dry_run:
        orders = _settle(request, context)
        return ServeResult(planned=[_planned(order, context) for order in orders])
    with host_lock(context, "serve", wait=request.wait_for_lock):
        orders = _settle(request, context)
        going = [order for order in orders if order.starts]
        _stop_earlier(going, context)
        _await_memory(going, context)
        for order in going:
            _start(order, context)
        states = await_ready([order.name for order in orders], context)
        standing = {order.name for order in orders if not order.starts}
        return ServeResult(servers=asyncio.run(_asked_again(states, standing, context)))


def _settle(request: ServeRequest, context: Context) -> list[Order]:
    check_together(request.servers)
    running = {spec.name: _running(context, spec.name) for spec in request.servers}
    if not (request.replace or request.restart):
        for spec in request.servers:
            _refuse_other_spec(spec, running[spec.name])
    context.report.progress("checking model and flags with the installed SGLang")
    with Pool(8, "plan") as pool:  # each asks SGLang in a process of its own, which takes seconds
        launches = list(
            in_order(pool, lambda spec: plan_launch(spec, context, cwd=Path("/")), request.servers, ahead=1 << 10)
        )
    orders = [Order(launch, running[launch.spec.name], request.restart) for launch in launches]
    going = [order for order in orders if order.starts]
    for order in going:
        if order.earlier is not None and not (request.replace or request.restart):
            raise _conflict(order.earlier, "with another command")
    check_neighbours([order.launch.spec for order in going], _neighbours(request, context))
    freed = {order.earlier.port for order in going if order.earlier is not None}
    for order in going:
        check_host(order.launch.spec, order.earlier, context.workdir.server(order.name), freed)
    return orders


def _refuse_other_spec(spec: ServerSpec, earlier: ServerState | None) -> None:
    """Raise HostError for a conflict that the records show, before SGLang is asked about flags, which takes seconds."""
    if earlier is None:
        return
    if earlier.mode != spec.mode:
        raise _conflict(earlier, f"in mode {earlier.mode!r} (not in {spec.mode!r}, as asked for)")
    if earlier.spec != redacted_spec(spec):
        raise _conflict(earlier, "with another command")


def _conflict(earlier: ServerState, how: str) -> HostError:
    return HostError(
        f"A server {earlier.name!r} {how} has been running since {_clock(earlier.started_at)} "
        f"(mode {earlier.mode}, port {earlier.port}).",
        remedy="Use `inv restart`, or `inv stop` and then `inv serve`.",
    )


def _neighbours(request: ServeRequest, context: Context) -> list[ServerState]:
    """Return the running servers of this workdir that the request does not name."""
    ordered = {spec.name for spec in request.servers}
    found = [_running(context, name) for name in records.names(context.workdir) if name not in ordered]
    return [state for state in found if state is not None]


def _running(context: Context, name: str) -> ServerState | None:
    """Return the server if it runs, starts, or will be started again; a server that is ending is waited for."""
    state = records.load(context.workdir.server(name))
    if state is None:
        return None
    if state.status in ("failed", "stopped") and state.restart_at is None:
        wait_until(lambda: find(state.supervisor) is None, ENDING_SECONDS)
    return state if find(state.server) is not None or find(state.supervisor) is not None else None


def _stop_earlier(orders: list[Order], context: Context) -> None:
    """End the servers to be replaced, all at once; raises HostError naming processes that do not end."""
    earlier = [order.earlier for order in orders if order.earlier is not None]
    if not earlier:
        return
    context.report.progress(f"stopping {', '.join(state.name for state in earlier)}")
    with Pool(len(earlier), "stop") as pool:
        stopping = in_order(
            pool, lambda state: stop_server(context.workdir.server(state.name), state), earlier, ahead=len(earlier)
        )
        left = list(stopping)
    remaining = [sentence for sentences in left for sentence in sentences]
    if remaining:
        raise HostError(f"The earlier server could not be ended: {'; '.join(remaining)}.", remedy="See `inv free`.")


def _await_memory(orders: list[Order], context: Context) -> None:
    """Wait until the GPU memory of ended processes is given back; raises HostError if it is not."""
    wanted = {one for order in orders for one in order.launch.spec.gpus}
    if left := memory.await_orphaned(wanted, context.report):
        raise HostError(
            f"{'; '.join(found.describe_charge() for found in left)}, after {memory.MEMORY_SECONDS:.0f} s of waiting. "
            "Nothing was started.",
            remedy="See `inv free`; a GPU reset or a reboot gives back memory that no process holds.",
        )


async def _asked_again(states: list[ServerState], standing: set[str], context: Context) -> list[ServerState]:
    """Return the states after asking each server that ran already; raises HostError if one does not serve."""

    async def one(state: ServerState) -> ServerState:
        if state.name not in standing:
            return state
        context.report.progress(f"{state.name}: runs already; asking it for a generation")
        paths = context.workdir.server(state.name)
        proof = await pulse.ask(state, paths, pulse.SERVE_SECONDS, canary=state.capture is not None)
        return state.model_copy(update={"canary": f"{proof}, asked again just now"})

    return await together(*(one(state) for state in states))


def _start(order: Order, context: Context) -> None:
    launch, spec = order.launch, order.launch.spec
    paths = context.workdir.server(spec.name)
    start = logfile.next_start(paths, spec)
    mark = f"{paths.root}#{secrets.token_hex(8)}"
    if spec.capture is not None:
        dump.claim(Path(spec.capture.dump_dir), mark)
    state = ServerState(
        name=spec.name,
        mode=spec.mode,
        status="starting",
        port=spec.port,
        model=spec.model,
        command=launch.argv,
        log=str(logfile.log_path(paths, spec, start)),
        start=start,
        mark=mark,
        authorization=str(paths.authorization),
        capture=launch.capture,
        sglang=launch.sglang,
        spec=redacted_spec(spec),
        started_at=time.time(),
    )
    records.save(paths, state)
    order_of_start = SuperviseRequest(
        name=spec.name,
        env={**launch.environ(), MARK: mark},
        config=launch.config,
        closes_admin=launch.closes_admin,
    )
    start_supervisor(state, order_of_start, context)


def _planned(order: Order, context: Context) -> PlannedStart:
    launch = order.launch
    paths = context.workdir.server(order.name)
    log = logfile.log_path(paths, launch.spec, logfile.next_start(paths, launch.spec))
    return PlannedStart(
        name=order.name,
        command=launch.argv,
        env=redacted(launch.added_env, launch.spec.secrets),
        log=str(log),
        steps=_steps(order),
    )


def _steps(order: Order) -> list[str]:
    if not order.starts:
        return ["The server runs already with this command: it is asked for a generation, and nothing is started."]
    steps = []
    if order.earlier is not None:
        steps.append(f"The earlier server {order.name!r} (mode {order.earlier.mode}) is stopped.")
    if order.launch.capture is not None:
        steps.append(f"The dump directory {order.launch.capture.dump_dir} is claimed.")
    return steps


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
