"""A planned server start for the refusals: parsed flags, model config and environment, and what follows from them.

Host side; changes nothing. Knows the names of each setting in SGLang 0.5.9 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from remote.capture.environment import PATIENCE_SECONDS
from remote.model_families import family_of
from remote.shared.messages.attach import CheckedFlags

_OLDER_NAMES = {
    "tp_size": "tensor_parallel_size",
    "dp_size": "data_parallel_size",
    "attn_cp_size": "attention_context_parallel_size",
}
"""Names of the same settings in the parser of 0.5.9 and 0.5.10."""
_FALSE = {"0", "false", "no", "n", "off"}


@dataclass(frozen=True)
class Situation:
    """One planned server start."""

    checked: CheckedFlags
    model_config: Mapping[str, object]
    env: Mapping[str, str]

    def has(self, name: str) -> bool:
        """Return whether this SGLang has the setting at all."""
        return name in self.checked.values

    def value(self, name: str) -> object:
        """Return the setting's value; None if it is unset or unknown to this SGLang."""
        return self.checked.values.get(name)

    def on(self, name: str) -> bool:
        """Return whether a switch is set."""
        return bool(self.value(name))

    def any_on(self, *names: str) -> bool:
        """Return whether one of several switches is set."""
        return any(self.on(name) for name in names)

    def number(self, name: str) -> int:
        """Return a size; 1 if it is unset."""
        value = self.value(name if self.has(name) else _OLDER_NAMES.get(name, name))
        return value if isinstance(value, int) else 1

    @property
    def attention_dp(self) -> int:
        """Return the number of rank groups that hold different requests."""
        dp = self.number("dp_size") if self.on("enable_dp_attention") else 1
        return max(dp, self.number("attn_dp_size"))

    @property
    def attention_tp(self) -> int:
        """Return the number of ranks that hold the same requests."""
        return max(1, self.number("tp_size") // (self.attention_dp * self.number("attn_cp_size")))

    @property
    def all_to_all(self) -> bool:
        """Whether experts exchange tokens through an all-to-all backend."""
        return self.value("moe_a2a_backend") not in (None, "none")

    @property
    def prefill_graphs(self) -> bool:
        """Whether prefill may run as CUDA graphs: True unless disabled explicitly, because defaults vary by GPU."""
        if not self.has("cuda_graph_backend_prefill"):
            if self.has("disable_piecewise_cuda_graph"):
                return not self.on("disable_piecewise_cuda_graph") or self.on("enforce_piecewise_cuda_graph")
            return self.on("enable_piecewise_cuda_graph")
        chosen = self._graph_config() or self.value("cuda_graph_backend_prefill")
        if chosen is not None:
            return chosen != "disabled"
        return not self.any_on("disable_cuda_graph", "disable_prefill_cuda_graph")

    def _graph_config(self) -> object:
        """Return the prefill backend in `--cuda-graph-config`, which overrides every other flag."""
        config = self.value("cuda_graph_config")
        prefill = config.get("prefill") if isinstance(config, dict) else None
        return prefill.get("backend") if isinstance(prefill, dict) else None

    @property
    def allreduce_fusion(self) -> bool:
        """Whether a layer may leave its all-reduce to the next layer's norm, by a flag or by SGLang's own choice.

        SGLang turns it on for MoE models on Hopper and Blackwell with TP above 1, no DP attention, no all-to-all.
        """
        family = family_of(self.model_config)
        if family is None or not family.fuses_allreduce or self.value("device") == "cpu":
            return False
        if self.number("tp_size") == 1 or self.attention_dp > 1 or self.all_to_all:
            return False
        if self.on("enable_aiter_allreduce_fusion"):
            return True
        if self.has("enforce_disable_flashinfer_allreduce_fusion"):
            return not self.on("enforce_disable_flashinfer_allreduce_fusion")
        return self.env.get("SGLANG_IS_FLASHINFER_AVAILABLE", "true").lower() not in _FALSE

    @property
    def impatient_watchdog(self) -> bool:
        """Whether SGLang's watchdog ends a server within twice the time that capture's back-pressure may take."""
        seconds = self.value("watchdog_timeout")
        return isinstance(seconds, int | float) and 0 < seconds < 2 * PATIENCE_SECONDS
