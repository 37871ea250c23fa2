"""The winner as a piece of inventory, and its way into the file with comments and order kept."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from hosts.inventory.model import FlagValue
from hosts.tune.grid import Setting
from remote.files import write_whole


def fragment(host: str, mode: str, setting: Setting) -> dict[str, Any]:
    """What belongs under `hosts:` for this host to run with the setting."""
    settings: dict[str, Any] = {}
    if setting.env:
        settings["nccl"] = {name: _plain(value) for name, value in setting.env.items()}
    if setting.flags:
        settings["modes"] = {mode: {"flags": dict(setting.flags)}}
    return {"hosts": {host: settings}}


def as_yaml(document: dict[str, Any]) -> str:
    """The fragment as text to paste."""
    stream = io.StringIO()
    _yaml().dump(document, stream)
    return stream.getvalue()


def apply(path: Path, document: dict[str, Any]) -> None:
    """Merge the fragment into the inventory file, whole and with its mode; comments and order stay."""
    yaml = _yaml()
    content = yaml.load(path.read_text(encoding="utf-8"))
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


def _yaml() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _plain(value: str) -> FlagValue:
    return int(value) if value.isdigit() else value
