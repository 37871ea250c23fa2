"""Findings about Python, SGLang, capture and the model. Laptop's side, called by `judge`; pure."""

from __future__ import annotations

from collections.abc import Iterator

from hosts.doctor.findings import Expectations, Finding, green, red, yellow
from hosts.units import size
from remote.shared.messages.facts import CaptureFacts, Facts, ModelFacts

NEEDED = ("torch", "transformers", "safetensors", "psutil", "aiohttp", "orjson", "pydantic", "xxhash", "numpy")
"""Packages that Roost needs from the SGLang install; Roost installs nothing on a host."""


def python(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Check that the packages of an SGLang install are there."""
    packages = facts.python.packages
    missing = [name for name in NEEDED if not packages.get(name)]
    where = f"Python {facts.python.version} at {facts.python.executable}"
    if missing:
        yield red(
            "python",
            f"{where} lacks {', '.join(missing)}",
            "Set `python` to the interpreter that SGLang is installed in.",
        )
    else:
        yield green("python", f"{where}, torch {packages['torch']}, transformers {packages['transformers']}")
    if facts.gpu.gpus and not packages.get("nvidia-ml-py"):
        yield yellow(
            "python",
            "nvidia-ml-py is missing, so GPUs are asked through nvidia-smi, which is slower",
            "Install nvidia-ml-py into this Python.",
        )


def capture(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Check whether capture can be attached to the SGLang that a server would import."""
    found = facts.capture
    if found.installation is None or found.problem:
        yield red("sglang", found.problem or "no SGLang was found", found.remedy or "Set `python` for this host.")
        return
    where = f"SGLang {found.installation.version} at {found.installation.package}"
    if found.supported:
        yield green("sglang", f"{where}, capture by {found.way}: {found.reason}")
        yield from _files(found)
    else:
        yield red(
            "sglang",
            f"{where}: capture was never tried with this version",
            "Install an SGLang version that Roost supports; `inv attach` refuses unknown model files.",
        )
    if found.installation.others:
        yield yellow(
            "sglang",
            f"other copies on the path are not used: {', '.join(found.installation.others)}",
            "Remove them, or check that `python` and `env` choose the right one.",
        )


def _files(found: CaptureFacts) -> Iterator[Finding]:
    """Judge SGLang's model files if capture is a patch: it never overwrites a file that it does not know."""
    assert found.installation is not None
    if found.way != "patch":
        return
    unknown = [file for file in found.files if file.state == "unknown"]
    for file in unknown:
        yield red("sglang", f"{file.path}: {file.problem}", "`inv attached` shows the difference; restore the file.")
    if not found.installation.writable and any(file.state != "attached" for file in found.files):
        yield red(
            "sglang",
            f"the patch must write to {found.installation.package}, but this user may not",
            "Log in as a user who may, or install an SGLang with plugins (0.5.14 or newer).",
        )


def model(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Check that the model is complete, that capture supports it, and that the configured layers exist."""
    found = facts.model
    if found is None:
        yield yellow("model", "the inventory names none for this host", "Set `model` to its path on the host.")
    elif found.problem:
        yield red("model", found.problem, found.remedy)
    elif not found.captured:
        yield red(
            "model",
            f"capture does not support {found.path}, a {found.architecture or 'model without `architectures`'}",
            "Capture supports DeepSeek-V2/V3, Kimi-K2, Llama, Qwen3 and Qwen3-MoE.",
        )
    else:
        yield from _whole_model(found, wanted)


def _whole_model(found: ModelFacts, wanted: Expectations) -> Iterator[Finding]:
    beyond = [layer for layer in wanted.layers if layer >= found.layers]
    if beyond:
        yield red(
            "model",
            f"the model has {found.layers} blocks, so boundary {beyond[0]} cannot be an auxiliary layer",
            f"Choose `layers` below {found.layers}; the final state is always added.",
        )
    else:
        shape = f"{found.layers} blocks x {found.hidden_size}, {size(found.weight_bytes)} of weights"
        yield green("model", f"{found.architecture}, {shape} in {found.path}")
    if wanted.context_length and 0 < found.context_length < wanted.context_length:
        yield yellow(
            "model",
            f"`context_length` is {wanted.context_length:,} and the model's own limit is {found.context_length:,}",
            "SGLang needs SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1; the model was not trained beyond its limit.",
        )
