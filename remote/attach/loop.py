"""Reads from a model's source in SGLang whether its loop over the blocks has the shape of a known family. Host side.

Called by `inv attach --probe`, and by tests for every family in every release. Parses files and imports nothing of
SGLang. The variables to which a block's result is assigned show how the loop passes the residual stream on.
"""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.attach.probe import find_installation
from remote.context import Context
from remote.model_families import FAMILIES, REFUSED, architecture, family_of
from remote.shared.errors import HostError
from remote.shared.messages.attach import ProbeReport, ProbeRequest

SHAPES = {
    "sum": "a block returns its contribution and the residual, whose sum is the stream",
    "whole": "a block returns the whole stream",
    "batch": "the residual is in the forward batch",
}
_PACKAGE = "sglang.srt.models."
_DEPTH = 6
"""The largest number of classes that are followed from an architecture to its loop."""


@dataclass(frozen=True)
class Loop:
    """The loop over an architecture's blocks, and the loop's class."""

    module: str
    model_class: str
    shape: str
    """A key of `SHAPES`; empty if the loop has another shape."""
    source: str
    """The loop's source text; empty if it is unknown."""


def probe(request: ProbeRequest, context: Context) -> ProbeReport:
    """The verb `probe`. Raises HostError if the host's Python has no SGLang, or the model's folder no config."""
    installation = find_installation(payload=context.payload, env=request.env)
    config = read_config(Path(request.model).expanduser())
    name, family = architecture(config), family_of(config)
    models = Models(Path(installation.package))
    loop = models.loop_of(name)
    return ProbeReport(
        architecture=name,
        served=family.name if family else "",
        refused=REFUSED.get(name, ""),
        sglang=installation.version,
        module=loop.module if loop else "",
        model_class=loop.model_class if loop else "",
        shape=SHAPES.get(loop.shape, "") if loop else "",
        near=_near(loop, models) if loop and loop.shape else [],
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Return a model's `config.json`; raise HostError if there is none that can be read."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise HostError(
            f"{folder / 'config.json'} cannot be read: {error}.", remedy="Set `model` in the inventory."
        ) from error
    return config if isinstance(config, dict) else {}


def _near(loop: Loop, models: Models) -> list[str]:
    """Return the families whose loop has this shape, sorted by the similarity of the text."""
    likeness = {}
    for family in FAMILIES:
        own = models.loop(family.module.removeprefix(_PACKAGE), family.model_class)
        if own is not None and own.shape == loop.shape:
            likeness[family.name] = difflib.SequenceMatcher(None, own.source, loop.source).ratio()
    return sorted(likeness, key=likeness.__getitem__, reverse=True)[:2]


class Models:
    """The model files of one installed SGLang."""

    def __init__(self, package: Path) -> None:
        self._folder = package / "srt" / "models"
        self._parsed: dict[str, ast.Module | None] = {}

    def module_of(self, name: str) -> str:
        """Return the module that defines a class of this name; empty if none does."""
        for path in sorted(self._folder.glob("*.py")):
            if f"class {name}(" in path.read_text(errors="replace"):
                return path.stem
        return ""

    def loop_of(self, architecture: str) -> Loop | None:
        """Return the loop over an architecture's blocks; None if no class of that name, or no loop, is found."""
        module = self.module_of(architecture)
        return self.loop(module, architecture) if module else None

    def loop(self, module: str, name: str, depth: int = _DEPTH) -> Loop | None:
        """Return the loop of a class: its own, its base class's, or that of a class which it constructs."""
        found = self._class(module, name)
        if found is None or depth == 0:
            return None
        own = _shape(found)
        if own is not None:
            return Loop(_PACKAGE + module, name, own[0], own[1])
        for other in (*_built(found), *(ast.unparse(base) for base in found.bases)):
            place = self._place(module, other)
            loop = self.loop(place, other, depth - 1) if place else None
            if loop is not None:
                return loop
        return None

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._parsed:
            path = self._folder / f"{module}.py"
            self._parsed[module] = ast.parse(path.read_text()) if path.is_file() else None
        return self._parsed[module]

    def _class(self, module: str, name: str) -> ast.ClassDef | None:
        tree = self._tree(module)
        nodes = tree.body if tree else []
        return next((node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name), None)

    def _place(self, module: str, name: str) -> str:
        """Return the module that defines a class which `module` uses."""
        if self._class(module, name) is not None:
            return module
        tree = self._tree(module)
        for node in tree.body if tree else []:
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(_PACKAGE):
                continue
            if name in {alias.asname or alias.name for alias in node.names}:
                return str(node.module).removeprefix(_PACKAGE)
        return ""


def _built(found: ast.ClassDef) -> Iterator[str]:
    """Return the names of classes that the class's methods call or take as a default."""
    for method in found.body:
        if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "_init_model"):
            for default in method.args.defaults:
                if isinstance(default, ast.Name):
                    yield default.id
            for node in ast.walk(method):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id[:1].isupper():
                    yield node.func.id


def _shape(found: ast.ClassDef) -> tuple[str, str] | None:
    """Return shape and text of the class's own loop over `self.layers`; None if it has no such loop."""
    for method in found.body:
        if isinstance(method, ast.FunctionDef) and method.name == "forward":
            for loop in (node for node in ast.walk(method) if isinstance(node, ast.For)):
                call = _call_of_block(loop)
                if call is not None and "self.layers" in ast.unparse(method):
                    in_batch = "residual_batch.start" in ast.unparse(method)
                    return ("batch" if in_batch else _of_target(call, loop)), ast.unparse(loop)
    return None


def _call_of_block(loop: ast.For) -> ast.Assign | None:
    blocks = {"layer", "decoder_layer", "self.layers[i]", "self.layers[layer_idx]", "self.layers[idx]"}
    for node in ast.walk(loop):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if ast.unparse(node.value.func) in blocks:
            return node
    return None


def _of_target(call: ast.Assign, loop: ast.For) -> str:
    target = call.targets[0]
    if isinstance(target, ast.Tuple):
        return "sum" if "residual" in ast.unparse(target.elts[1]) else ""
    name = ast.unparse(target)
    return "whole" if name == "hidden_states" or f"hidden_states = {name}[0]" in ast.unparse(loop) else ""
