"""The model families that capture serves: one row each, with its file in SGLang. Standard library only.

Read by the patch (which file to edit), the refusals (is this model served), capture's hook (which class to watch),
`inv attach --probe`, the tests and the tables of docs/models.md. A family that is read as all others are is one row
here; one whose blocks lie elsewhere has a small class in `remote/capture/families.py` as well.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Family:
    """One model file of SGLang, and the architectures (`config.json`) whose layers it runs."""

    name: str
    module: str
    model_class: str
    """The class that runs the blocks one after the other."""
    architectures: tuple[str, ...]
    """The architectures whose class in SGLang is in `module`."""
    wrappers: tuple[tuple[str, str], ...] = ()
    """Architectures in other files that build this family's model, or a class derived from it, each with its file."""
    fuses_allreduce: bool = False
    """Whether its layers can leave their all-reduce to the next layer's norm."""

    @property
    def served(self) -> tuple[str, ...]:
        """Return all architectures of the family."""
        return (*self.architectures, *(name for name, _file in self.wrappers))

    def file(self, package: Path) -> Path:
        """Return the path of this family's module in an `sglang` package folder."""
        return package.joinpath(*self.module.split(".")[1:]).with_suffix(".py")


_MODELS = "sglang.srt.models"

FAMILIES = (
    Family(
        "deepseek",
        f"{_MODELS}.deepseek_v2",
        "DeepseekV2Model",
        ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
        (("KimiK25ForConditionalGeneration", "kimi_k25"),),
        fuses_allreduce=True,
    ),
    Family(
        "llama",
        f"{_MODELS}.llama",
        "LlamaModel",
        ("LlamaForCausalLM", "Phi3ForCausalLM"),
        (("MistralForCausalLM", "mistral"), ("Ministral3ForCausalLM", "ministral3")),
    ),
    Family("qwen2", f"{_MODELS}.qwen2", "Qwen2Model", ("Qwen2ForCausalLM",)),
    Family(
        "qwen3",
        f"{_MODELS}.qwen3",
        "Qwen3Model",
        ("Qwen3ForCausalLM",),
        (("Qwen3VLForConditionalGeneration", "qwen3_vl"),),
    ),
    Family(
        "qwen3_moe",
        f"{_MODELS}.qwen3_moe",
        "Qwen3MoeModel",
        ("Qwen3MoeForCausalLM",),
        fuses_allreduce=True,
    ),
    Family("glm4", f"{_MODELS}.glm4", "Glm4Model", ("Glm4ForCausalLM",)),
    Family("glm4_moe", f"{_MODELS}.glm4_moe", "Glm4MoeModel", ("Glm4MoeForCausalLM",), fuses_allreduce=True),
    Family("minimax_m2", f"{_MODELS}.minimax_m2", "MiniMaxM2Model", ("MiniMaxM2ForCausalLM",), fuses_allreduce=True),
    Family("gemma3", f"{_MODELS}.gemma3_causal", "Gemma3TextModel", ("Gemma3ForCausalLM",)),
    Family("gpt_oss", f"{_MODELS}.gpt_oss", "GptOssModel", ("GptOssForCausalLM",), fuses_allreduce=True),
    Family("ernie4", f"{_MODELS}.ernie4", "Ernie4Model", ("Ernie4_5_ForCausalLM", "Ernie4_5_MoeForCausalLM")),
)

_SPARSE = "its attention reads only the rows that an indexer chose, which no CPU and no H200 of ours has run"
_STREAMS = "it keeps several residual streams, so a boundary is not one vector a token"
_VISION = "the text part of this wrapper was not held to transformers"
REFUSED: dict[str, str] = {
    "DeepseekV32ForCausalLM": _SPARSE,
    "GlmMoeDsaForCausalLM": _SPARSE,
    "DeepseekV4ForCausalLM": _STREAMS,
    "Gemma3nForCausalLM": _STREAMS,
    "Gemma3nForConditionalGeneration": _STREAMS,
    "Qwen3NextForCausalLM": "behind its full attention, states were 2.7 times as far from float32 as transformers' own"
    " in bfloat16 on an H200 (twice is allowed)",
    "Qwen3_5ForConditionalGeneration": "its gated linear attention is Qwen3-Next's, which is not proven",
    "Qwen3_5MoeForConditionalGeneration": "its gated linear attention is Qwen3-Next's, which is not proven",
    "Llama4ForCausalLM": "SGLang 0.5.17 computes another state behind its first block than transformers (15 % apart)",
    "Llama4ForConditionalGeneration": "its language model is Llama4ForCausalLM, which is not proven",
    "HunYuanMoEV1ForCausalLM": "SGLang's attention for CPUs does not run its blocks, and no GPU has run them",
    "HunYuanDenseV1ForCausalLM": "SGLang's attention for CPUs does not run its blocks, and no GPU has run them",
    "Qwen3VLMoeForConditionalGeneration": _VISION,
    "Gemma3ForConditionalGeneration": _VISION,
    "Mistral3ForConditionalGeneration": _VISION,
}
"""Architectures for which people train drafters, with the reason why capture does not serve them."""

MODEL_CLASSES = {family.module: family.model_class for family in FAMILIES}


def architecture(model_config: Mapping[str, object]) -> str:
    """Return the first architecture in a model's `config.json`; empty if it names none."""
    names = model_config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def family_of(model_config: Mapping[str, object]) -> Family | None:
    """Return the family that runs a model, or None if capture does not serve it."""
    name = architecture(model_config)
    return next((family for family in FAMILIES if name in family.served), None)


def nearest(name: str) -> list[str]:
    """Return the served architectures with the names nearest to an unknown name; empty if none is near."""
    return difflib.get_close_matches(name, [one for family in FAMILIES for one in family.served], n=2, cutoff=0.55)
