"""`inv tune`: search a host's NCCL settings and all-reduce flags, and write the winner into the inventory if asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hosts.errors import UsageError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.inventory.servers import server_specs
from hosts.transport.backend import Backend
from hosts.tune import fragment
from hosts.tune.confirming import Confirming
from hosts.tune.grid import collectives, current, grid_of, with_flags
from hosts.tune.outcome import Tuned, conclude
from hosts.tune.plan import Plan
from hosts.tune.record import load
from hosts.tune.screening import Screening

Say = Callable[[Host, str], None]


def planned(fleet: Fleet, plan: Plan) -> dict[str, list[str]]:
    """What a search would try on each host, the current setting first; changes nothing."""
    return {host.name: [setting.key for setting in collectives(host, plan.mode)] for host in fleet.hosts}


def tune(fleet: Fleet, plan: Plan, say: Say) -> list[Outcome[Tuned]]:
    """Search on every host at once; an interrupted search goes on where it stopped."""
    for host in fleet.hosts:
        _check(host, plan)
    root = fleet.inventory.path.parent
    return fleet.each(lambda backend: _tune(backend, root, plan, lambda text: say(backend.host, text)))


def apply(fleet: Fleet, tuned: list[Tuned]) -> list[str]:
    """Write the winners into the inventory file; return the hosts whose settings changed."""
    changed = [each for each in tuned if not each.is_current]
    for each in changed:
        fragment.apply(fleet.inventory.path, winning_fragment(each))
    return [each.host for each in changed]


def winning_fragment(tuned: Tuned) -> dict[str, object]:
    """The winner as it belongs into the inventory."""
    return fragment.fragment(tuned.host, tuned.mode, tuned.winner)


def _check(host: Host, plan: Plan) -> None:
    spec = server_specs(host, plan.mode)[0]
    if spec.tp < 2:
        raise UsageError(
            f"{host.name} runs {spec.name!r} with tp {spec.tp}, so its ranks have nothing to say to each other.",
            remedy="Tune a server with tp 2 or more.",
        )
    if spec.gpus and len(spec.gpus) < spec.tp:
        raise UsageError(f"{host.name} gives {spec.name!r} {len(spec.gpus)} GPUs for tp {spec.tp}.")


def _tune(backend: Backend, root: Path, plan: Plan, say: Callable[[str], None]) -> Tuned:
    host = backend.host
    spec = server_specs(host, plan.mode)[0]
    grid = {name: list[object](values) for name, values in grid_of(host).items()}
    record = load(root, host.name, plan.mode, plan.goal, grid, fresh=plan.fresh)
    now = current(host, plan.mode)
    finalists = Screening(backend, root, plan, spec, record, say).best(collectives(host, plan.mode))
    challengers = [setting for setting in with_flags(host, finalists) if setting != now]
    # The current setting is measured first and last, so that a drift of the machine is in its own spread.
    Confirming(backend, root, plan, spec.name, record, say).run([now, *challengers[: plan.confirm], now])
    return conclude(host.name, plan, now, record)
