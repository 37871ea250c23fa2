"""The settings under which capture would be wrong: refused before a server starts, each with a remedy. Host side.

Called by every server start with the arguments as the installed SGLang parsed them. The rules are a table: a new
finding is a new row, and `docs/attach.md` is printed from it. Its rows are faults that nothing reports at run time;
capture and the collector detect the others (a missing prefix, a value that is not finite).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from remote.attach.situation import Situation
from remote.model_families import FAMILIES, REFUSED, architecture, family_of, nearest
from remote.shared.messages.attach import CheckedFlags, Refusal


@dataclass(frozen=True)
class Rule:
    """One configuration in which rows would be missing, partial, or those of another record."""

    name: str
    applies: Callable[[Situation], bool]
    sentence: str
    cures: tuple[tuple[str, str], ...]
    """What to do instead, newest names first, each with the setting that SGLang must have for it ("" means any)."""
    examples: tuple[tuple[str, ...], ...] = ()
    """Flags that provoke the fault, newest names first; the tests use the first that a parser knows."""


def _any(cure: str) -> tuple[tuple[str, str], ...]:
    """Return the remedy for settings that have one name in every release."""
    return (("", cure),)


def _served() -> str:
    return ", ".join(name for family in FAMILIES for name in family.served)


RULES = (
    Rule(
        "model",
        lambda it: family_of(it.model_config) is None,
        "no capture is written for this model's architecture",
        _any(f"a model of one of: {_served()}"),
    ),
    Rule(
        "model-implementation",
        lambda it: it.value("model_impl") not in (None, "auto", "sglang"),
        "the model runs through another implementation than the one that capture reads",
        _any("--model-impl=sglang"),
        (("--model-impl=transformers",),),
    ),
    Rule(
        "radix-cache",
        lambda it: not it.on("disable_radix_cache"),
        "a cached prefix is not computed again, so a record would lack its rows (199 of a repeated 200)",
        _any("--disable-radix-cache"),
        ((),),
    ),
    Rule(
        "hierarchical-cache",
        lambda it: it.any_on("enable_hierarchical_cache", "enable_lmcache", "enable_flexkv"),
        "prefixes come back from a second cache without being computed, so records would lack their rows",
        _any("none of --enable-hierarchical-cache, --enable-lmcache and --enable-flexkv"),
        (("--enable-hierarchical-cache",),),
    ),
    Rule(
        "prefill-graph",
        lambda it: it.prefill_graphs,
        "prefill runs as CUDA graphs, and on replay no capture code runs, so nothing would be written",
        (
            ("cuda_graph_backend_prefill", "--cuda-graph-backend-prefill=disabled"),
            ("disable_piecewise_cuda_graph", "--disable-piecewise-cuda-graph, without the flag that enforces them"),
            ("", "no --enable-piecewise-cuda-graph"),
        ),
        (
            ("--cuda-graph-backend-prefill=breakable",),
            ("--enforce-piecewise-cuda-graph",),
            ("--enable-piecewise-cuda-graph",),
        ),
    ),
    Rule(
        "two-batch-overlap",
        lambda it: it.on("enable_two_batch_overlap"),
        "layers leave the loop and run on half batches side by side, so boundaries would be skipped",
        _any("no --enable-two-batch-overlap"),
        (("--enable-two-batch-overlap",),),
    ),
    Rule(
        "allreduce-fusion",
        lambda it: it.allreduce_fusion,
        "a layer hands on a sum that other ranks still owe, so rows would be one rank's part of it",
        (
            (
                "enforce_disable_flashinfer_allreduce_fusion",
                "--enforce-disable-flashinfer-allreduce-fusion, without --enable-aiter-allreduce-fusion",
            ),
            ("", "SGLANG_IS_FLASHINFER_AVAILABLE=false in `env` (there is no flag for it before 0.5.10)"),
        ),
        (("--tp-size=2", "--enable-aiter-allreduce-fusion"), ("--tp-size=2",)),
    ),
    Rule(
        "scattered-rows",
        lambda it: (
            it.attention_tp > 1
            and (
                it.all_to_all
                or it.value("moe_dense_tp_size") == 1
                or it.number("dwdp_size") > 1
                or it.any_on("enable_attn_tp_input_scattered", "enable_layernorm_sp")
            )
        ),
        "between layers each rank holds only its share of a prompt's rows",
        _any(
            "as many attention DP ranks as TP ranks, or none of --moe-a2a-backend, --moe-dense-tp-size=1, --dwdp-size, "
            "--enable-attn-tp-input-scattered and --enable-layernorm-sp"
        ),
        (("--tp-size=2", "--moe-a2a-backend=deepep"),),
    ),
    Rule(
        "context-parallel",
        lambda it: (
            it.number("attn_cp_size") > 1
            or it.any_on(
                "enable_prefill_cp",
                "enable_prefill_context_parallel",
                "enable_nsa_prefill_context_parallel",
                "enable_dsa_prefill_context_parallel",
            )
        ),
        "a prompt's rows are split over ranks and out of order",
        _any("neither --enable-prefill-cp (or its older names) nor --attn-cp-size"),
        (("--attn-cp-size=2",),),
    ),
    Rule(
        "speculative-decoding",
        lambda it: it.value("speculative_algorithm") is not None,
        "draft and verify batches look like prefill, and the draft model runs the same layer class",
        _any("neither --speculative-algorithm nor the flags that go with it"),
        (("--speculative-algorithm=EAGLE3",),),
    ),
    Rule(
        "mixed-chunk",
        lambda it: it.on("enable_mixed_chunk"),
        "decode rows ride in prefill batches as prompts of length 1",
        _any("no --enable-mixed-chunk"),
        (("--enable-mixed-chunk",),),
    ),
    Rule(
        "split-prefill",
        lambda it: it.on("enable_pdmux"),
        "prefill is split by layers and bypasses the model's forward pass",
        _any("no --enable-pdmux"),
        (("--enable-pdmux",),),
    ),
    Rule(
        "diffusion-decoding",
        lambda it: it.value("dllm_algorithm") is not None,
        "blocks are denoised repeatedly, and each pass looks like a prefill",
        _any("no --dllm-algorithm"),
        (("--dllm-algorithm=LowConfidence",),),
    ),
    Rule(
        "impatient-watchdog",
        lambda it: it.impatient_watchdog,
        "the forward pass may wait 100 s for the collector, and this watchdog would take that for a hang",
        _any("--watchdog-timeout=300"),
        (("--watchdog-timeout=60",),),
    ),
    Rule(
        "disaggregation",
        lambda it: it.value("disaggregation_mode") not in (None, "null"),
        "a prompt's request is answered by another server than the one that computes its rows",
        _any("no --disaggregation-mode"),
        (("--disaggregation-mode=prefill",),),
    ),
)


def refusals(
    checked: CheckedFlags, model_config: Mapping[str, object], env: Mapping[str, str] | None = None
) -> list[Refusal]:
    """Return every reason why capture would be wrong; empty if there is none.

    `checked` is the result of `check_flags`, `model_config` the model's `config.json`, and `env` the variables of the
    server's start.
    """
    situation = Situation(checked, model_config, env or {})
    return [_refusal(rule, situation) for rule in RULES if rule.applies(situation)]


def unserved(name: str) -> str:
    """Return a sentence on an architecture that capture does not serve: the reason, or similar architectures."""
    if not name:
        return "no capture is written for this model: its config.json names no architecture"
    if name in REFUSED:
        return f"{name} is not captured: {REFUSED[name]}"
    near = nearest(name)
    like = f"; the nearest that are served: {', '.join(near)}" if near else ""
    return f"no capture is written for {name}{like}; `inv attach --probe` says whether its loop is a known one"


def _refusal(rule: Rule, situation: Situation) -> Refusal:
    cure = next(cure for setting, cure in rule.cures if not setting or situation.has(setting))
    sentence = rule.sentence
    if rule.name == "model":
        sentence = unserved(architecture(situation.model_config))
    return Refusal(name=rule.name, sentence=sentence, cure=cure)
