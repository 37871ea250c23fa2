"""Shell completion of values: hosts and groups after `--host`, modes after `--mode`, planned runs after `--run`.

Runs on the laptop for `inv --complete` and `roost --complete`, which the scripts of Invoke's
`--print-completion-script` call. Task names and options are completed by Invoke itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise

from invoke.collection import Collection

from hosts.errors import RoostError
from hosts.inventory.kept import Kept
from hosts.inventory.load import inventory_path, load_inventory
from hosts.inventory.model import Inventory

_HOSTS = ("--host", "--hosts")


def values(typed: str, tasks: Collection) -> list[str]:
    """Return the possible values at the end of the command line `typed`; none if Invoke or the shell completes it."""
    words = _words(typed)
    flag, begun = _open_option(words)
    if flag == "--help":
        return sorted(tasks.task_names)
    last = typed.rsplit(maxsplit=1)[-1] if words else ""
    joined = f"{flag}=" if last.startswith(f"{flag}=") else ""  # zsh and fish replace the word as a whole
    return [joined + value for value in _known(flag, begun, words)]


def _known(flag: str | None, begun: str, words: Sequence[str]) -> list[str]:
    """Return the values that the inventory and the plans beside it know for an option."""
    if flag not in (*_HOSTS, "--run", "--mode"):
        return []
    try:
        inventory = load_inventory(inventory_path(_given(words)))
    except RoostError:
        return []
    if flag in _HOSTS:
        chosen, comma, _ = begun.rpartition(",")
        return [
            f"{chosen}{comma}{name}" for name in (*inventory.hosts, *inventory.cluster_hosts, *inventory.groups, "all")
        ]
    if flag == "--run":
        return _runs(inventory)
    return sorted({mode for host in inventory.hosts.values() for mode in host.modes})


def _words(typed: str) -> list[str]:
    try:
        words = shlex.split(typed)
    except ValueError:  # a quote is still open
        words = typed.split()
    return [part for word in words for part in _apart(word)]


def _apart(word: str) -> list[str]:
    """Split `--host=gpu1` into option and value; in bash, `=` is a word of its own, which is left out."""
    if word == "=":
        return []
    flag, equals, value = word.partition("=")
    return [flag, value] if equals and flag.startswith("--") else [word]


def _open_option(words: Sequence[str]) -> tuple[str | None, str]:
    """Return the option whose value is being typed, and the beginning of the value."""
    if words and words[-1].startswith("--"):
        return words[-1], ""
    if len(words) > 1 and words[-2].startswith("--"):
        return words[-2], words[-1]
    return None, ""


def _given(words: Sequence[str]) -> str | None:
    """Return the inventory that the command line names, if any."""
    found = [value for flag, value in pairwise(words) if flag == "--inventory"]
    return found[-1] if found else None


def _runs(inventory: Inventory) -> list[str]:
    folder = Kept.beside(inventory.path).runs
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
