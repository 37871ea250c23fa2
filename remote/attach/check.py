"""Imports a model module as a server would, to learn which file it comes from and whether capture is in it. Host side.

`check_import` starts a process, in which `look` answers. Capture stays dormant: no dump directory is set.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from types import ModuleType
from typing import Any

from remote.attach.interpreter import Interpreter
from remote.attach.ways import PLUGIN_NAME
from remote.model_families import Family
from remote.shared.errors import HostError
from remote.shared.messages.attach import ModuleCheck, Way

_GROUP = "sglang.srt.plugins"
_HOOK = "remote.capture.hook"
_DUMP_DIR = "SGLANG_HS_DUMP_DIR"


def check_import(family: Family, way: Way, interpreter: Interpreter) -> ModuleCheck:
    """Import the family's module with the host's Python. Raises HostError if the import itself fails."""
    question = {"module": family.module, "way": way}
    answer = interpreter.ask_once("remote.attach.check:look", question, lambda said: said.get("problem") == "")
    if "error" in answer:
        raise HostError(f"The host's Python cannot import {family.module}: {answer['error']}.")
    return ModuleCheck(
        module=family.module, file=answer["file"], attached=not answer["problem"], problem=answer["problem"]
    )


def look(question: dict[str, Any]) -> dict[str, object]:
    """Answer `check_import` in the process that it started."""
    os.environ.pop(_DUMP_DIR, None)
    try:
        module = importlib.import_module(question["module"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    problem = _plugin_problem() if question["way"] == "plugin" else _patch_problem(module)
    return {"file": str(module.__file__), "problem": problem or _hook_problem()}


def _hook_problem() -> str:
    """Return why the code that block and plugin call cannot be loaded; a server would only log it."""
    try:
        hook = importlib.import_module(_HOOK)
    except Exception as error:
        return f"{_HOOK} cannot be imported ({type(error).__name__}: {error})"
    missing = [name for name in ("install", "install_in") if not callable(getattr(hook, name, None))]
    return f"{_HOOK} has no {missing[0]}" if missing else ""


def _patch_problem(module: ModuleType) -> str:
    return "" if hasattr(module, "_roost_block") else "the imported module is not the patched file"


def _plugin_problem() -> str:
    """Return why SGLang's plugin loader would not load Roost's entry point in this environment; empty if it would."""
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and PLUGIN_NAME not in (name.strip() for name in allowed.split(",")):
        return f"SGLANG_PLUGINS={allowed} does not include the plugin {PLUGIN_NAME}"
    entries = [entry for entry in importlib.metadata.entry_points(group=_GROUP) if entry.name == PLUGIN_NAME]
    if len(entries) != 1:
        return f"{len(entries)} plugins named {PLUGIN_NAME} are on the path instead of one"
    return ""
