"""Which way capture gets into a server, and what that start needs in its environment. Host side.

Called by the `attach` verbs and by every server start. Touches nothing.
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
    """Settle `attach: auto|plugin|patch` for the SGLang that is installed.

    Raises HostError if a way was asked for that this SGLang does not have.
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
    """Variables that a server start needs so that capture's code is found; the rest of `base` stays as it is.

    `payload` is the folder that holds `remote/`; `base` the environment that the server would start with
    (default: this process's). SGLang's own allow list is widened where somebody set one.
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
    """The folder whose `*.dist-info` makes capture one of SGLang's plugins."""
    return payload / "remote" / "attach" / PLUGIN_FOLDER.name
