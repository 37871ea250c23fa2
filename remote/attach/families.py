"""The model families that capture serves, and their files in SGLang. Host side, imports nothing of SGLang.

Read by the patch (which file to edit), the refusals (is this model served at all) and the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Family:
    """One model file of SGLang, and the architectures (`config.json`) whose layers it runs."""

    name: str
    module: str
    architectures: tuple[str, ...]
    fuses_allreduce: bool = False
    """Whether its layers can leave their all-reduce to the next layer's norm."""

    def file(self, package: Path) -> Path:
        """Return the path of this family's module in an `sglang` package folder."""
        return package.joinpath(*self.module.split(".")[1:]).with_suffix(".py")


FAMILIES = (
    Family(
        "deepseek",
        "sglang.srt.models.deepseek_v2",
        (
            "DeepseekV2ForCausalLM",
            "DeepseekV3ForCausalLM",
            "KimiK25ForConditionalGeneration",
        ),
        fuses_allreduce=True,
    ),
    Family("llama", "sglang.srt.models.llama", ("LlamaForCausalLM",)),
    Family("qwen3", "sglang.srt.models.qwen3", ("Qwen3ForCausalLM",)),
    Family("qwen3_moe", "sglang.srt.models.qwen3_moe", ("Qwen3MoeForCausalLM",), fuses_allreduce=True),
)


def architecture(model_config: Mapping[str, object]) -> str:
    """Return the first architecture in a model's `config.json`; empty if it names none."""
    names = model_config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def family_of(model_config: Mapping[str, object]) -> Family | None:
    """Return the family that runs a model, or None if capture does not serve it."""
    name = architecture(model_config)
    return next((family for family in FAMILIES if name in family.architectures), None)
