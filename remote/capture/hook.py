"""How capture gets into SGLang's model. `install` is the plugin's entry point, `install_in` what a patched file calls.

Both run in every SGLang process and must cost nothing there: nothing is imported beyond the standard library until
a model is built, and nothing at all is done while `SGLANG_HS_DUMP_DIR` is unset. A model that is built gets forward
hooks; of SGLang's own code only the constructors of the model classes are wrapped.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from remote.capture.environment import DUMP_DIR

logger = logging.getLogger(__name__)

MODEL_CLASSES = {
    "sglang.srt.models.deepseek_v2": "DeepseekV2Model",
    "sglang.srt.models.llama": "LlamaModel",
    "sglang.srt.models.qwen3": "Qwen3Model",
    "sglang.srt.models.qwen3_moe": "Qwen3MoeModel",
}
"""As in `families.FAMILIES`, which imports torch; a test holds them together."""


def install() -> None:
    """Have every model that this process builds captured. Called by SGLang's plugin loader, in each process."""
    if not os.environ.get(DUMP_DIR):
        return
    for name in MODEL_CLASSES:
        if name in sys.modules:
            install_in(name)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def install_in(module_name: str) -> None:
    """Have models of one imported model module captured. Called at the end of a patched file."""
    if os.environ.get(DUMP_DIR):
        _wrap_constructor(sys.modules[module_name], MODEL_CLASSES[module_name])


def _wrap_constructor(module: ModuleType, class_name: str) -> None:
    cls: Any = getattr(module, class_name, None)
    if cls is None or "_roost_capture" in vars(cls):
        return
    cls._roost_capture = True
    original: Callable[..., None] = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        try:
            from remote.capture.attachment import attach_to_model

            attach_to_model(self)
        except Exception:
            # The server goes on; its start-up check misses the canary's dump and names this log.
            logger.exception("Roost's capture is not active in this process")

    cls.__init__ = __init__


class _AfterImport(MetaPathFinder):
    """Wraps a model module's loader, so that its class is wrapped as soon as it exists."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODEL_CLASSES:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Wrapped(spec.loader)
                return spec
        return None


class _Wrapped(Loader):
    """Another loader, and then ours; anything else asked of it is the other loader's."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _wrap_constructor(module, MODEL_CLASSES[module.__name__])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
