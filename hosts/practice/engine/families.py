"""The tiny models' families, each with its configuration and the weights of one block. Runs inside `.engine`.

Called by `tiny_model.py`; pure. The widths are small, but no part of the real architecture is missing: MLA with yarn,
grouped routing with a correction bias, shared experts, a dense first block, query and key norms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hosts.practice.engine.weights import Weights

HIDDEN = 128
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
DENSE_INNER, EXPERT_INNER = 256, 64
EXPERTS, EXPERTS_PER_TOKEN, SHARED_EXPERTS = 8, 2, 1
Q_RANK, KV_RANK, NOPE_DIM, ROPE_DIM, V_DIM = 64, 64, 32, 16, 32
FIRST_MOE_BLOCK = 1


@dataclass(frozen=True)
class Family:
    """One architecture: its own keys of `config.json`, and a function that adds the weights of a block."""

    config: dict[str, Any]
    add_block: Callable[[Weights, int], None]


def _deepseek(architecture: str, model_type: str, routing: dict[str, Any], correction: bool) -> Family:
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": Q_RANK,
        "kv_lora_rank": KV_RANK,
        "qk_nope_head_dim": NOPE_DIM,
        "qk_rope_head_dim": ROPE_DIM,
        "v_head_dim": V_DIM,
        "intermediate_size": DENSE_INNER,
        "moe_intermediate_size": EXPERT_INNER,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": SHARED_EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "topk_group": 1,
        "first_k_dense_replace": FIRST_MOE_BLOCK,
        "moe_layer_freq": 1,
        "aux_loss_alpha": 0.001,
        "seq_aux": True,
        "ep_size": 1,
        "num_nextn_predict_layers": 0,
        # SGLang's DeepSeek reads yarn's keys unconditionally.
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        **routing,
    }

    def add_block(weights: Weights, index: int) -> None:
        _latent_attention(weights, f"model.layers.{index}.self_attn.")
        mlp = f"model.layers.{index}.mlp."
        if index < FIRST_MOE_BLOCK:
            weights.gated_mlp(mlp, HIDDEN, DENSE_INNER)
            return
        if correction:
            weights.bias(f"{mlp}gate.e_score_correction_bias", EXPERTS)
        weights.gated_mlp(f"{mlp}shared_experts.", HIDDEN, EXPERT_INNER * SHARED_EXPERTS)
        _routed_experts(weights, mlp)

    return Family(config, add_block)


def _latent_attention(weights: Weights, prefix: str) -> None:
    weights.matrix(f"{prefix}q_a_proj.weight", Q_RANK, HIDDEN)
    weights.norm(f"{prefix}q_a_layernorm.weight", Q_RANK)
    weights.matrix(f"{prefix}q_b_proj.weight", HEADS * (NOPE_DIM + ROPE_DIM), Q_RANK)
    weights.matrix(f"{prefix}kv_a_proj_with_mqa.weight", KV_RANK + ROPE_DIM, HIDDEN)
    weights.norm(f"{prefix}kv_a_layernorm.weight", KV_RANK)
    weights.matrix(f"{prefix}kv_b_proj.weight", HEADS * (NOPE_DIM + V_DIM), KV_RANK)
    weights.matrix(f"{prefix}o_proj.weight", HIDDEN, HEADS * V_DIM)


def _routed_experts(weights: Weights, prefix: str) -> None:
    weights.matrix(f"{prefix}gate.weight", EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        weights.gated_mlp(f"{prefix}experts.{expert}.", HIDDEN, EXPERT_INNER)


def _grouped_query(architecture: str, model_type: str, *, norms: bool, moe: bool = False) -> Family:
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": DENSE_INNER,
        "rope_scaling": None,
    }
    if moe:
        config |= {
            "num_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS_PER_TOKEN,
            "moe_intermediate_size": EXPERT_INNER,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
        }

    def add_block(weights: Weights, index: int) -> None:
        attention = f"model.layers.{index}.self_attn."
        weights.matrix(f"{attention}q_proj.weight", HEADS * HEAD_DIM, HIDDEN)
        weights.matrix(f"{attention}k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        weights.matrix(f"{attention}v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        weights.matrix(f"{attention}o_proj.weight", HIDDEN, HEADS * HEAD_DIM)
        if norms:
            weights.norm(f"{attention}q_norm.weight", HEAD_DIM)
            weights.norm(f"{attention}k_norm.weight", HEAD_DIM)
        mlp = f"model.layers.{index}.mlp."
        if moe:
            _routed_experts(weights, mlp)
        else:
            weights.gated_mlp(mlp, HIDDEN, DENSE_INNER)

    return Family(config, add_block)


_V3_ROUTING = {
    "n_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
_V2_ROUTING = {
    "n_group": 1,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_method": "greedy",
}

FAMILIES: dict[str, Family] = {
    "deepseek_v3": _deepseek("DeepseekV3ForCausalLM", "deepseek_v3", _V3_ROUTING, correction=True),
    "deepseek_v2": _deepseek("DeepseekV2ForCausalLM", "deepseek_v2", _V2_ROUTING, correction=False),
    "llama": _grouped_query("LlamaForCausalLM", "llama", norms=False),
    "qwen3": _grouped_query("Qwen3ForCausalLM", "qwen3", norms=True),
    "qwen3_moe": _grouped_query("Qwen3MoeForCausalLM", "qwen3_moe", norms=True, moe=True),
}
