"""Many command lines through one SGLang's own parser in one process: an import of SGLang takes seconds.

Asked through `Interpreter.ask`, as the product asks. Other releases than the installed one are imported from their
wheels into the same environment, whose transformers is newer than they expect.
"""

from __future__ import annotations

import sys
import types
from typing import Any


def parse_all(question: dict[str, Any]) -> dict[str, object]:
    """Answer every question of `remote.attach.flags.parse` in `question["lines"]`."""
    if question["tolerant"]:
        _tolerate_newer_transformers()
    from remote.attach.flags import parse

    return {"answers": [parse(line) for line in question["lines"]]}


def _tolerate_newer_transformers() -> None:
    """Names that an older SGLang imports or registers at its start and that parsing flags never uses."""
    import transformers
    from transformers.models.auto import configuration_auto

    registered = configuration_auto._LazyConfigMapping.register
    configuration_auto._LazyConfigMapping.register = lambda self, key, value, exist_ok=False: registered(
        self, key, value, exist_ok=True
    )
    transformers.AutoProcessor = types.SimpleNamespace(register=lambda *_arguments, **_more: None)
    sys.modules.setdefault("decord", types.ModuleType("decord"))
