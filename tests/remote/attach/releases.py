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


def request_ids(question: dict[str, Any]) -> dict[str, object]:
    """Have a release's own forward batch made from a batch of two requests; its `rids`, and whether they were its own.

    Everything else that `init_new` computes needs a model runner, so a batch's bare fields stand in for its result.
    """
    _stand_in()
    from sglang.srt.model_executor import forward_batch_info as module

    from remote.capture.batch import supply_request_ids

    batch = types.SimpleNamespace(reqs=[types.SimpleNamespace(rid=rid) for rid in question["rids"]])
    own = "rids" in module.ForwardBatch.__dataclass_fields__
    if not own:
        module.ForwardBatch.init_new = classmethod(lambda cls, _batch, _runner: object.__new__(cls))
    supply_request_ids()
    made = None if own else module.ForwardBatch.init_new(batch, None).rids
    return {"own": own, "rids": made}


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
