"""`inv tune`: searches a host's NCCL settings and all-reduce flags; writes the winner into the inventory on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hosts.bench.serving import each_to_its_end
from hosts.errors import UsageError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.inventory.servers import gpu_ordinals, server_specs
from hosts.transport.backend import Backend
from hosts.tune import fragment
from hosts.tune.confirming import Confirming
from hosts.tune.grid import collectives, current, grid_of, with_flags
from hosts.tune.outcome import Tuned, conclude
from hosts.tune.record import Basis, load
from hosts.tune.screening import Screening
from hosts.tune.search import Plan, Search, search_of
from remote.shared.messages.facts import Facts, FactsRequest
from remote.shared.messages.tune import check_gpus

Say = Callable[[Host, str], None]


def planned(fleet: Fleet, plan: Plan) -> list[Outcome[Search]]:
    """Return what a search would do on each host; changes nothing. A host with too few GPUs gets an error."""

    def on_host(backend: Backend) -> Search:
        host = backend.host
        _check(host, plan)
        spec = server_specs(host, plan.mode)[0]
        if spec.gpus:
            found = backend.call("facts", FactsRequest(), Facts).gpu
            check_gpus(gpu_ordinals(spec), [gpu.index for gpu in found.gpus])
        return search_of(host, plan)

    return fleet.each(on_host)


def tune(fleet: Fleet, plan: Plan, say: Say, note: Callable[[str], None]) -> list[Outcome[Tuned]]:
    """Search on every host at once; an interrupted search continues from its record."""
    for host in fleet.hosts:
        _check(host, plan)
    root = fleet.inventory.path.parent
    return each_to_its_end(
        fleet, lambda backend: _tune(backend, root, plan, lambda text: say(backend.host, text)), note
    )


def apply(fleet: Fleet, tuned: list[Tuned]) -> list[str]:
    """Write the winners into the inventory file; return the hosts whose settings changed."""
    changed = [each for each in tuned if not each.is_current]
    for each in changed:
        fragment.apply(fleet.inventory.path, each.fragment)
    return [each.host for each in changed]


def _check(host: Host, plan: Plan) -> None:
    spec = server_specs(host, plan.mode)[0]
    if not spec.gpus and any(name.startswith("NCCL_") for name in grid_of(host)):
        raise UsageError(
            f"{host.name} has no GPUs in the inventory, so no NCCL variable changes anything there.",
            remedy="Give `gpus`, or name other variables and flags under `tune`.",
        )
    if spec.tp < 2:
        raise UsageError(
            f"{host.name} runs {spec.name!r} with tp {spec.tp}, so there is no communication between ranks to tune.",
            remedy="Tune a server with tp 2 or more.",
        )
    if spec.gpus and len(spec.gpus) < spec.tp:
        raise UsageError(
            f"{host.name} gives {spec.name!r} {len(spec.gpus)} GPUs for tp {spec.tp}.",
            remedy="Correct `gpus` or `tp` in the inventory.",
        )
    if spec.nodes:
        raise UsageError(
            f"{spec.name!r} spans {len(spec.nodes)} hosts, but the benchmark of collectives runs on a single host.",
            remedy="Tune a server that runs on one host.",
        )


def _tune(backend: Backend, root: Path, plan: Plan, say: Callable[[str], None]) -> Tuned:
    host = backend.host
    spec = server_specs(host, plan.mode)[0]
    now = current(host, plan.mode)
    basis = Basis(grid=grid_of(host), now=now, model=spec.model, tp=spec.tp, gpus=gpu_ordinals(spec))
    record = load(root, host.name, plan.mode, plan.goal, basis, fresh=plan.fresh)
    finalists = Screening(backend, root, plan, spec, record, say).best(collectives(host, plan.mode))
    challengers = [setting for setting in with_flags(host, finalists) if setting != now]
    # The current setting is measured first and last, so that its spread includes a drift of the machine.
    Confirming(backend, root, plan, spec.name, record, say).run([now, *challengers, now])
    return conclude(host, plan, now, record)
