"""Configurations of tiny models, for families that transformers can build from a configuration. Runs inside `.engine`.

Called by `tiny_model.py`; pure. The widths are small, but the features of each family are there (partial rotation,
post-norms, attention sinks, gated linear attention, shared experts), so a state from a wrong place has wrong values.
"""

from __future__ import annotations

from typing import Any

import torch

from hosts.practice.engine.families import DENSE_INNER, EXPERT_INNER, EXPERTS, HEAD_DIM, HEADS, HIDDEN, KV_HEADS

_GQA: dict[str, Any] = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM}
_SPECIALS = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258}
_SIZES = {"hidden_size": HIDDEN, "vocab_size": 512, "max_position_embeddings": 4096, "tie_word_embeddings": False}
_ROUTED = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT_INNER}
_V3_ROUTING = {
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_INNER,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
_ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
_HALF_ROPE = {**_ROPE, "partial_rotary_factor": 0.5}
_LINEAR = {
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}
_HYBRID = ["linear_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention"]
_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": HIDDEN}
_ROTATED_VISION = {"rope_parameters": {**_ROPE, "mrope_section": [8, 4, 4], "mrope_interleaved": True}}

PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2", **_GQA, "intermediate_size": DENSE_INNER, "rope_parameters": _ROPE},
    "mistral": {
        "model_type": "mistral",
        **_GQA,
        "intermediate_size": DENSE_INNER,
        "sliding_window": None,
        "rope_parameters": _ROPE,
    },
    "ministral3": {
        "model_type": "ministral3",
        **_GQA,
        "intermediate_size": DENSE_INNER,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "phi3": {
        "model_type": "phi3",
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": DENSE_INNER,
        "original_max_position_embeddings": 4096,
        "rope_parameters": _ROPE,
    },
    "glm4": {
        "model_type": "glm4",
        **_GQA,
        "intermediate_size": DENSE_INNER,
        "attention_bias": True,
        "rope_parameters": _HALF_ROPE,
    },
    "glm4_moe": {
        "model_type": "glm4_moe",
        **_GQA,
        "intermediate_size": DENSE_INNER,
        **_V3_ROUTING,
        "use_qk_norm": True,
        "attention_bias": True,
        "rope_parameters": _HALF_ROPE,
    },
    "minimax_m2": {
        "model_type": "minimax_m2",
        **_GQA,
        "intermediate_size": EXPERT_INNER,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "rotary_dim": HEAD_DIM // 2,
        "rope_parameters": _HALF_ROPE,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **_GQA,
        "intermediate_size": DENSE_INNER,
        "query_pre_attn_scalar": HEAD_DIM,
        "sliding_window": 4096,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "rope_parameters": {
            "sliding_attention": _ROPE,
            "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
        },
        "tie_word_embeddings": True,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **_GQA,
        "intermediate_size": EXPERT_INNER,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "rope_parameters": _ROPE,
    },
    "qwen3_next": {
        "model_type": "qwen3_next",
        **_GQA,
        **_ROUTED,
        **_LINEAR,
        "intermediate_size": DENSE_INNER,
        "shared_expert_intermediate_size": EXPERT_INNER,
        "layer_types": [*_HYBRID, "linear_attention"],
        "rope_parameters": _HALF_ROPE,
    },
    "qwen3_vl": {
        "model_type": "qwen3_vl",
        "text_config": {**_GQA, "intermediate_size": DENSE_INNER, **_ROTATED_VISION},
        "vision_config": {**_VISION, "deepstack_visual_indexes": []},
        # SGLang's own name for a checkpoint that is served without its processor.
        "language_model_only": True,
    },
    "llama4": {
        "model_type": "llama4_text",
        **_GQA,
        "intermediate_size": EXPERT_INNER,
        "intermediate_size_mlp": DENSE_INNER,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 4096,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "hunyuan_moe": {
        "model_type": "hunyuan_v1_moe",
        **_GQA,
        "intermediate_size": DENSE_INNER,
        "num_experts": EXPERTS,
        "moe_topk": 2,
        # Keys of the published config that SGLang reads, and for which transformers has defaults.
        "moe_intermediate_size": DENSE_INNER,
        "use_mixed_mlp_moe": True,
        "num_shared_expert": 1,
        "use_qk_norm": True,
        "rope_parameters": _ROPE,
    },
    "ernie4_moe": {
        "model_type": "ernie4_5_moe",
        **_GQA,
        "intermediate_size": DENSE_INNER,
        "moe_intermediate_size": EXPERT_INNER,
        "moe_num_experts": EXPERTS,
        "moe_k": 2,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
        "rope_parameters": _ROPE,
    },
}


def build(family: str, layers: int, dtype: torch.dtype, seed: int) -> Any:
    """Return the family's model, with random weights in which a wrong norm, layer or row has visible effects."""
    return build_from(PUBLISHED[family], layers, dtype, seed)


def build_from(said: dict[str, Any], layers: int, dtype: torch.dtype, seed: int) -> Any:
    """Build a model from a configuration. Sizes and token ids that it lacks are those of all practice models."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    said = dict(said)
    text = {**_SIZES, **_SPECIALS, "num_hidden_layers": layers}
    if "text_config" in said:
        said["text_config"] = {**text, **said["text_config"]}
    else:
        said = {**text, **said}
    config = AutoConfig.for_model(said.pop("model_type"), **said)
    chosen = AutoModelForImageTextToText if "text_config" in said else AutoModelForCausalLM
    model = chosen.from_config(config, dtype=torch.float32)
    _draw(model, torch.Generator().manual_seed(seed))
    return model.to(dtype)


def _draw(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Draw random weights: matrices that keep their input's scale, and norms and biases around their initial values."""
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            drawn = torch.randn(weight.shape, generator=generator)
            if "embed_tokens" in name:
                weight.copy_(drawn)
            elif weight.dim() >= 2:
                weight.copy_(drawn * weight.shape[-1] ** -0.5)
            elif name.endswith("A_log"):
                weight.copy_(drawn.abs().log1p())
            else:
                weight.add_(0.1 * drawn)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "moe_statics")):
                buffer.copy_(0.01 * torch.randn(buffer.shape, generator=generator))
