"""The winner as a fragment of the inventory, and its merge into the file, which keeps comments and order."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.util import load_yaml_guess_indent

from hosts.inventory.document import writer
from hosts.inventory.model import FlagValue, Host
from hosts.inventory.servers import find_mode
from hosts.tune.grid import Setting
from remote.shared.files import write_whole


def fragment(host: Host, mode: str, setting: Setting) -> dict[str, Any]:
    """Return the mapping to merge into the inventory, so that this host runs with the setting.

    A variable goes under `nccl`, or into the mode's `env` if the mode sets it, because `env` wins over `nccl`.
    """
    of_mode = find_mode(host, mode).env
    nccl = {name: _plain(value) for name, value in setting.env.items() if name not in of_mode}
    env = {name: _plain(value) for name, value in setting.env.items() if name in of_mode}
    changes = {key: value for key, value in (("flags", dict(setting.flags)), ("env", env)) if value}
    settings: dict[str, Any] = {}
    if nccl:
        settings["nccl"] = nccl
    if changes:
        settings["modes"] = {mode: changes}
    return {"hosts": {host.name: settings}}


def apply(path: Path, document: dict[str, Any]) -> None:
    """Merge the fragment into the inventory file atomically; permissions, comments and order stay."""
    text = path.read_text(encoding="utf-8")
    _, sequence, offset = load_yaml_guess_indent(text)
    yaml = writer(sequence or 4, 2 if offset is None else offset)
    content = yaml.load(text)
    _merge(content, document)
    stream = io.StringIO()
    yaml.dump(content, stream)
    mode = path.stat().st_mode & 0o777
    write_whole(path, stream.getvalue().encode())
    os.chmod(path, mode)  # noqa: PTH101 - the person's own file keeps its permissions


def _merge(below: CommentedMap, over: dict[str, Any]) -> None:
    for name, value in over.items():
        if isinstance(value, dict):
            if not isinstance(below.get(name), CommentedMap):
                below[name] = CommentedMap()
            _merge(below[name], value)
        else:
            below[name] = value


def _plain(value: str) -> FlagValue:
    return int(value) if value.isdigit() else value
