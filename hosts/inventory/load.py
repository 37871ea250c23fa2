"""Reads `inventory.yaml` into an `Inventory`: merges defaults, validates, and names the line of every mistake."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from hosts.errors import InventoryError, nearest
from hosts.inventory import document
from hosts.inventory.address import CONTRADICTION
from hosts.inventory.clusters import CONNECTION, AnyCluster, split
from hosts.inventory.document import Written, WrittenFloat
from hosts.inventory.model import SECRET_FLAG, Host, Inventory, Mode, Notify, ServerEntry
from remote.shared.redact import is_secret, without_credentials

ENVIRONMENT_VARIABLE = "ROOST_INVENTORY"
DEFAULT_NAME = "inventory.yaml"
EXAMPLE = Path(__file__).with_name("example.yaml")
"""The example inventory, which explains every key; in a clone it is the root's `inventory.yaml`."""
SECRET_SECTIONS = frozenset(("env", "secrets", "notify", "nccl"))
"""Sections of the inventory whose values never appear in an error."""
TOP_KEYS = ("clusters", "defaults", "groups", "hosts", "local", "modes", "nccl")


def inventory_path(given: str | None) -> Path:
    """Return `--inventory`, else $ROOST_INVENTORY, else the nearest `inventory.yaml` from the current folder upward.

    If there is none, the plain file name is returned, so that the error names the missing file.
    """
    named = given or os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return Path(named).expanduser()
    here = Path.cwd()
    found = next((folder for folder in (here, *here.parents) if (folder / DEFAULT_NAME).is_file()), here)
    return Path(DEFAULT_NAME) if found == here else found / DEFAULT_NAME


def is_from_above(path: Path, given: str | None) -> bool:
    """Return whether `inventory_path` found this file by itself in a folder above the current one."""
    return not given and ENVIRONMENT_VARIABLE not in os.environ and path != Path(DEFAULT_NAME)


def load_inventory(path: Path) -> Inventory:
    """Read and validate the file; raises InventoryError with file, line, key, expectation and nearest valid key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InventoryError(
            f"The inventory {path} could not be read: {reason}.",
            remedy="Name the file with --inventory or ROOST_INVENTORY, or write one with inv init.",
        ) from error
    return _Loader(path, *document.read(text, str(path))).inventory()


class _Loader:
    """Builds an inventory from one file's data and the lines of its keys."""

    def __init__(self, path: Path, data: dict[str, Any], lines: dict[document.Path, int]) -> None:
        self._path = path
        self._data = data
        self._lines = lines

    def inventory(self) -> Inventory:
        for key in self._data:
            if key not in TOP_KEYS:
                raise self._wrong((key,), f"unknown key {key!r}{_nearest(key, TOP_KEYS)}")
        hosts = self._mapping("hosts")
        if not hosts and not self._mapping("clusters"):
            raise self._wrong(("hosts",), "no hosts are listed; give at least one under `hosts:`")
        built = {name: self._host(name, own) for name, own in hosts.items()}
        local = self._local()
        clusters, cluster_hosts = self._clusters({**built, "local": local})
        return Inventory(
            path=self._path,
            hosts=built,
            groups=self._groups(set(built)),
            local=local,
            clusters=clusters,
            cluster_hosts=cluster_hosts,
        )

    def _host(self, name: str, own: Any) -> Host:
        if not isinstance(name, str):
            raise self._wrong(("hosts", str(name)), f"a host's name must be text; quote {name!r}")
        return self._build(name, self._section(own, ("hosts", name)), ("hosts", name))

    def _local(self) -> Host:
        own = {"connection": "local", "workdir": "~/.roost", "gpus": 0, "tp": 1}
        return self._build("local", {**own, **self._mapping("local")}, ("local",), own)

    def _build(
        self, name: str, own: dict[str, Any], where: document.Path, implied: dict[str, Any] | None = None
    ) -> Host:
        """Merge the shared settings with the host's own and validate them; `implied` settings have no line."""
        shared = _merge(
            self._mapping("defaults"),
            {key: self._data[key] for key in ("modes", "nccl") if key in self._data},
        )
        if implied is not None:
            shared = {key: value for key, value in shared.items() if key not in implied}
        try:
            return Host.model_validate({**_merge(shared, own), "name": name})
        except ValidationError as error:
            raise self._explain(error, where) from error

    def _clusters(self, known: dict[str, Host]) -> tuple[dict[str, AnyCluster], dict[str, Host]]:
        clusters: dict[str, AnyCluster] = {}
        hosts: dict[str, Host] = {}
        for name, given in self._mapping("clusters").items():
            where = ("clusters", str(name))
            if name in known or name == "all":
                raise self._wrong(where, f"{name!r} names a cluster and a host")
            try:
                cluster, of_host = split(str(name), self._section(given, where))
            except ValidationError as error:
                raise self._explain(error, where) from error
            if cluster.login not in known:
                problem = f"login names the unknown host {cluster.login!r}{_nearest(cluster.login, known)}"
                raise self._wrong((*where, "login"), problem)
            login = known[cluster.login].model_dump(include=set(CONNECTION), exclude_unset=True)
            own = {**login, **of_host, "workdir": cluster.workdir, "gpus": cluster.gpus_per_node}
            hosts[str(name)] = self._build(str(name), own, where)
            clusters[str(name)] = cluster
        return clusters, hosts

    def _groups(self, known: set[str]) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name, members in self._mapping("groups").items():
            if not isinstance(members, list):
                raise self._wrong(("groups", name), f"group {name!r} must be a list of host names")
            if name in known or name == "all":
                raise self._wrong(("groups", name), f"{name!r} names a group and a host")
            for number, member in enumerate(members):
                if member not in known:
                    problem = f"group {name!r} names the unknown host {member!r}{_nearest(str(member), known)}"
                    raise self._wrong(("groups", name, number), problem)
            groups[name] = members
        return groups

    def _mapping(self, key: str) -> dict[str, Any]:
        return self._section(self._data.get(key), (key,))

    def _section(self, value: Any, where: document.Path) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(where, f"{where[-1]!r} must be a mapping of keys to values")
        return value

    def _explain(self, error: ValidationError, where: document.Path) -> InventoryError:
        """Return the first problem with the line that caused it: the host's own key, or the shared default."""
        problem = error.errors(include_url=False)[0]
        location = tuple(part for part in problem["loc"] if isinstance(part, str | int))
        if problem["type"] in {SECRET_FLAG, CONTRADICTION}:
            return self._wrong(self._written((*location, problem["ctx"]["key"]), where), problem["msg"])
        written = self._written(location, where)
        if problem["type"] == "extra_forbidden":
            text = f"unknown key {str(location[-1])!r}{_nearest(str(location[-1]), _keys_at(location[:-1]))}"
        elif isinstance(problem["input"], Written | WrittenFloat) and problem["type"] != "value_error":
            text = _ambiguous(".".join(map(str, location)), problem["input"].text)
        elif location:
            text = f"{'.'.join(map(str, location))} is {_input(location, problem['input'])}: {_plain(problem['msg'])}"
        else:
            text = _plain(problem["msg"])
        return self._wrong(written, text)

    def _written(self, location: document.Path, where: document.Path) -> document.Path:
        for length in range(len(location), 0, -1):
            part = location[:length]
            for prefix in (where, ("defaults",), ()):
                if (*prefix, *part) in self._lines:
                    return (*prefix, *part)
        return where

    def _wrong(self, where: document.Path, problem: str) -> InventoryError:
        line = next((self._lines[where[:n]] for n in range(len(where), 0, -1) if where[:n] in self._lines), None)
        place = f"{self._path}" + (f" line {line}" if line else "")
        end = "" if problem.endswith("?") else "."
        return InventoryError(f"{place}: {problem}{end}", details={"line": line})


def _input(location: document.Path, value: object) -> str:
    """Return the wrong value for a message, or only its type if it may be a secret."""
    names = [part for part in location if isinstance(part, str)]
    if not SECRET_SECTIONS.isdisjoint(names) or any(map(is_secret, names)) or _has_sections(value):
        return f"a value (not shown) of type {type(value).__name__}"
    return repr(without_credentials(value) if isinstance(value, str) else value)


def _has_sections(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict | list) for item in value))


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`; mappings merge key by key, everything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _keys_at(location: document.Path) -> list[str]:
    """Return the keys that are valid at this place."""
    models: dict[str, type[BaseModel]] = {"modes": Mode, "servers": ServerEntry, "notify": Notify}
    model = models.get(str(location[0]), Host) if location else Host
    return list(model.model_fields)


def _nearest(key: str, known: Iterable[str]) -> str:
    near = nearest(key, known)
    return f"; d{near[1:]}" if near else ""


def _ambiguous(key: str, text: str) -> str:
    return f"{key} is {text}, which YAML reads as a different value; write a plain number, or quote the text"


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ").rstrip(".")
