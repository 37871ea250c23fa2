"""What is asked of real SGLang releases, in a process of their own: their parsers, their model modules.

Asked through `Interpreter.ask`, as the product asks. Releases other than the installed one run in its environment,
whose transformers is newer than they expect and which has no compiled kernels.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


def parse_all(question: dict[str, Any]) -> dict[str, object]:
    """Answer every question of `remote.attach.flags.parse` in `question["lines"]`; an import takes seconds."""
    if question["tolerant"]:
        _stand_in()
    from remote.attach.flags import parse

    return {"answers": [parse(line) for line in question["lines"]]}


def wrapped(question: dict[str, Any]) -> dict[str, object]:
    """Import model modules, with SGLang's plugins loaded first if asked; say of which the class is captured."""
    _stand_in()
    if question["plugins"]:
        importlib.import_module("sglang.srt.plugins").load_plugins()
    found = {}
    for name, class_name in question["modules"].items():
        found[name] = "_roost_capture" in vars(getattr(importlib.import_module(name), class_name))
    return {"wrapped": found}


def _stand_in() -> None:
    """Names that an older SGLang imports or registers at its start; nothing that is asked here calls them."""
    import transformers
    from transformers.models.auto import configuration_auto

    registered = configuration_auto._LazyConfigMapping.register
    configuration_auto._LazyConfigMapping.register = lambda self, key, value, exist_ok=False: registered(
        self, key, value, exist_ok=True
    )
    transformers.AutoProcessor = types.SimpleNamespace(register=lambda *_arguments, **_more: None)
    sys.modules.setdefault("decord", types.ModuleType("decord"))
    kernels = types.ModuleType("sgl_kernel.kvcacheio")
    vars(kernels)["__getattr__"] = lambda _name: None
    sys.modules.setdefault("sgl_kernel.kvcacheio", kernels)
