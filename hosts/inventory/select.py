"""Chooses the hosts of a command: `--host a`, `--hosts a,b`, `--hosts all`, `--hosts GROUP`."""

from __future__ import annotations

from hosts.errors import UsageError, nearest
from hosts.inventory.model import Host, Inventory

ALL = "all"
LOCAL = "local"


def select(inventory: Inventory, host: str | None, hosts: str | None) -> list[Host]:
    """Return the chosen hosts in the inventory's order, each once; a cluster is named like a host, and not in `all`.

    Names, groups and `all` may be mixed, separated by commas; `local` is the laptop. Raises UsageError if no host was
    named or a name is unknown.
    """
    words = [word.strip() for part in (host, hosts) if part for word in part.split(",") if word.strip()]
    if not words:
        raise UsageError("No host was named.", remedy=f"Add --host NAME or --hosts all ({_known(inventory)}).")
    wanted: set[str] = set()
    for word in words:
        wanted.update(_expand(inventory, word))
    every = {**inventory.hosts, **inventory.cluster_hosts}
    chosen = [candidate for name, candidate in every.items() if name in wanted]
    return [*chosen, inventory.local] if LOCAL in wanted and LOCAL not in inventory.hosts else chosen


def _expand(inventory: Inventory, word: str) -> list[str]:
    if word == ALL:
        if not inventory.hosts:
            raise UsageError(f"{inventory.path} has no hosts besides clusters.", remedy=_named(inventory))
        return list(inventory.hosts)
    if word in inventory.groups:
        return inventory.groups[word]
    if word in inventory.hosts or word in inventory.cluster_hosts or word == LOCAL:
        return [word]
    near = nearest(word, [*inventory.hosts, *inventory.cluster_hosts, *inventory.groups, ALL])
    hint = near or f"{inventory.path} has {_known(inventory)}."
    raise UsageError(f"There is no host or group {word!r}.", remedy=hint)


def _named(inventory: Inventory) -> str:
    return f"Name a cluster: --host {' or --host '.join(inventory.clusters)}."


def _known(inventory: Inventory) -> str:
    names = list(inventory.hosts)
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    groups = f"; groups {', '.join(inventory.groups)}" if inventory.groups else ""
    clusters = f"; clusters {', '.join(inventory.clusters)}" if inventory.clusters else ""
    return f"hosts {listed or 'none'}{groups}{clusters}"
