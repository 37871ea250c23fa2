"""Chooses how capture is attached to a server, and sets the start's environment for it. Host side.

Called by the `attach` verbs and by every server start. Changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from remote.attach.interpreter import prepend
from remote.shared.errors import HostError
from remote.shared.messages.attach import Choice, Installation, Way
from remote.shared.messages.server import Attach

PLUGIN_NAME = "roost_capture"
PLUGIN_FOLDER = Path(__file__).resolve().parent / "plugin"
_ALLOWED_PLUGINS = "SGLANG_PLUGINS"


def choose(attach: Attach, installation: Installation) -> Choice:
    """Choose the way for `attach: auto|plugin|patch` and the installed SGLang.

    Raises HostError if the inventory wants a way that this SGLang does not have.
    """
    if attach == "patch":
        return Choice(way="patch", reason="the inventory asks for it")
    if installation.has_plugins:
        reason = "the inventory asks for it" if attach == "plugin" else "nothing of SGLang is edited"
        return Choice(way="plugin", reason=reason)
    if attach == "plugin":
        raise HostError(
            f"SGLang {installation.version} at {installation.package} loads no plugins.",
            remedy="Set `attach: patch` (or auto), or install SGLang 0.5.14 or newer.",
        )
    return Choice(way="patch", reason=f"SGLang {installation.version} loads no plugins")


def environment(way: Way, payload: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that a server start needs to find capture's code, to be added to `base`.

    `payload` is the folder that holds `remote/`; `base` is the environment that the server would start with (default:
    this process's). If SGLang's allow list of plugins is set, capture is added to it.
    """
    base = os.environ if base is None else base
    path = prepend(str(payload), base.get("PYTHONPATH", ""))
    if way == "patch":
        return {"PYTHONPATH": path}
    added = {"PYTHONPATH": prepend(str(plugin_folder(payload)), path)}
    allowed = base.get(_ALLOWED_PLUGINS, "")
    if allowed and PLUGIN_NAME not in allowed.split(","):
        added[_ALLOWED_PLUGINS] = f"{allowed},{PLUGIN_NAME}"
    return added


def plugin_folder(payload: Path) -> Path:
    """Return the folder whose `*.dist-info` makes capture one of SGLang's plugins."""
    return payload / "remote" / "attach" / PLUGIN_FOLDER.name
