"""Attaches capture to SGLang's models. `install` is the plugin's entry point; a patched file calls `install_in`.

Both run in every SGLang process and must cost nothing there. Only the standard library is imported before a model is
built, and nothing is done while `SGLANG_HS_DUMP_DIR` is unset. A built model gets forward hooks. In SGLang's own code,
only the constructors of the model classes are wrapped.
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
from remote.model_families import MODEL_CLASSES

logger = logging.getLogger(__name__)


def install() -> None:
    """Capture every model that this process builds. Called by SGLang's plugin loader in each process."""
    if not os.environ.get(DUMP_DIR):
        return
    for name in MODEL_CLASSES:
        if name in sys.modules:
            install_in(name)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def install_in(module_name: str) -> None:
    """Capture the models of one imported model module. Called by the block at the end of a patched file."""
    if os.environ.get(DUMP_DIR):
        _watch(sys.modules[module_name], MODEL_CLASSES[module_name])


def _watch(module: ModuleType, class_name: str) -> None:
    """Capture every instance of the class and its subclasses once it is completely built."""
    cls: Any = getattr(module, class_name, None)
    if cls is None or "_roost_capture" in vars(cls):
        return
    cls._roost_capture = True
    original: Callable[..., Any] = cls.__new__

    def __new__(built: type, *arguments: Any, **keywords: Any) -> Any:
        _wrap_constructor(built)
        return object.__new__(built) if original is object.__new__ else original(built, *arguments, **keywords)

    cls.__new__ = staticmethod(__new__)


def _wrap_constructor(built: Any) -> None:
    """Attach capture after the outermost constructor, because a subclass may replace its base's blocks."""
    if "_roost_attaches" in vars(built):
        return
    built._roost_attaches = True
    original: Callable[..., None] = built.__init__

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        if type(self) is built:
            _attach(self)

    built.__init__ = __init__


def _attach(model: Any) -> None:
    try:
        from remote.capture.attachment import attach_to_model

        attach_to_model(model)
    except Exception:
        # The server continues; its start-up check misses the canary's dump and names this log.
        logger.exception("Roost's capture is not active in this process")


class _AfterImport(MetaPathFinder):
    """Wraps a model module's loader, so that the model class is wrapped as soon as it exists."""

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
    """A loader that wraps the model class after the original loader ran; other attributes are the original's."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _watch(module, MODEL_CLASSES[module.__name__])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
