"""Runs on the host for `remote.facts`: Python, packages, SGLang, capture and the model, without importing any."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import sys
from pathlib import Path

from remote.attach import patch
from remote.attach.probe import find_installation
from remote.attach.version import supported
from remote.attach.ways import choose
from remote.model_config import find_number
from remote.model_families import architecture, family_of
from remote.servers.probing.model import WEIGHT_PATTERNS, check_model, depth, hidden_size
from remote.shared.errors import RoostError
from remote.shared.messages.attach import Installation
from remote.shared.messages.facts import CaptureFacts, FactsRequest, ModelFacts, PythonFacts

PACKAGES = (
    "sglang",
    "torch",
    "transformers",
    "safetensors",
    "psutil",
    "aiohttp",
    "orjson",
    "pydantic",
    "xxhash",
    "zstandard",
    "numpy",
    "nvidia-ml-py",
)


def python_facts() -> PythonFacts:
    """Describe this Python, in which all verbs run."""
    return PythonFacts(
        executable=sys.executable,
        version=platform.python_version(),
        packages={name: package_version(name) for name in PACKAGES},
        torch_cuda=torch_cuda(),
    )


def package_version(name: str) -> str | None:
    """Return an installed package's version; None if it is missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda() -> str:
    """Return the CUDA version that torch was built for, from torch's files: importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return ""
    found = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else ""


def capture_facts(request: FactsRequest, payload: Path) -> CaptureFacts:
    """Return the SGLang that a server would import, and how capture is attached to it."""
    try:
        installation = find_installation(payload=payload, env=request.env)
        return _capture_in(installation, request)
    except RoostError as error:
        return CaptureFacts(problem=error.message, remedy=error.remedy)


def _capture_in(installation: Installation, request: FactsRequest) -> CaptureFacts:
    facts = CaptureFacts(installation=installation, supported=supported(installation.version))
    facts.files = [target.described() for target in patch.targets(installation)]
    try:
        choice = choose(request.attach, installation)
    except RoostError as error:
        facts.problem, facts.remedy = error.message, error.remedy
    else:
        facts.way, facts.reason = choice.way, choice.reason
    return facts


def model_facts(path: str) -> ModelFacts:
    """Describe the model's config, and whether its weight files are complete by their names and headers."""
    facts = ModelFacts(path=path)
    try:
        config = check_model(path)
        facts.layers, facts.hidden_size = depth(config), hidden_size(config)
    except RoostError as error:
        facts.problem, facts.remedy = error.message, error.remedy
        return facts
    facts.architecture = architecture(config)
    facts.captured = family_of(config) is not None
    facts.context_length = find_number(config, "max_position_embeddings") or 0
    folder = Path(path).expanduser()
    facts.weight_bytes = sum(file.stat().st_size for pattern in WEIGHT_PATTERNS for file in folder.glob(pattern))
    return facts
