"""Model folders for the benchmark: `tiny` with weights, `mid` for `--load-format dummy`. Needs torch for `tiny`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

_COMMON: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "kv_lora_rank": 512,
    "max_position_embeddings": 16384,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 0,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": None,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "tie_word_embeddings": False,
    "use_cache": True,
}
TINY: dict[str, Any] = _COMMON | {
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 6,
    "q_lora_rank": 384,
    "vocab_size": 2048,
}
MID: dict[str, Any] = _COMMON | {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 32,
    "num_experts_per_tok": 8,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 8,
    "q_lora_rank": 1536,
    "vocab_size": 32768,
}
"""DeepSeek-V3's true width a layer, with fewer layers and experts; about 12B parameters."""


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    """Make a model folder without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def write_weights(folder: Path, config: dict[str, Any], device: str) -> None:
    """Random bf16 weights under the checkpoint's own names, made on `device`."""
    draw = _Draw(device)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    draw.matrix("model.embed_tokens.weight", config["vocab_size"], hidden, deviation=1.0)
    draw.matrix("lm_head.weight", config["vocab_size"], hidden, deviation=0.05)
    draw.norm("model.norm.weight", hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        draw.norm(prefix + "input_layernorm.weight", hidden)
        draw.norm(prefix + "post_attention_layernorm.weight", hidden)
        _attention(draw, prefix + "self_attn.", config, hidden, heads)
        _feed_forward(draw, prefix + "mlp.", config, hidden, layer)
    save_file(draw.tensors, folder / "model.safetensors", metadata={"format": "pt"})


class _Draw:
    def __init__(self, device: str) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._device = device
        self._generator = torch.Generator(device=device).manual_seed(1)

    def matrix(self, name: str, rows: int, columns: int, deviation: float | None = None) -> None:
        values = torch.randn(rows, columns, generator=self._generator, device=self._device)
        self.tensors[name] = (values * (deviation or columns**-0.5)).to(torch.bfloat16).cpu()

    def norm(self, name: str, width: int) -> None:
        values = 1 + 0.1 * torch.randn(width, generator=self._generator, device=self._device)
        self.tensors[name] = values.to(torch.bfloat16).cpu()


def _attention(draw: _Draw, prefix: str, config: dict[str, Any], hidden: int, heads: int) -> None:
    query, latent, rope = config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"], config["v_head_dim"]
    draw.matrix(prefix + "q_a_proj.weight", query, hidden)
    draw.norm(prefix + "q_a_layernorm.weight", query)
    draw.matrix(prefix + "q_b_proj.weight", heads * (key + rope), query)
    draw.matrix(prefix + "kv_a_proj_with_mqa.weight", latent + rope, hidden)
    draw.norm(prefix + "kv_a_layernorm.weight", latent)
    draw.matrix(prefix + "kv_b_proj.weight", heads * (key + value), latent)
    draw.matrix(prefix + "o_proj.weight", hidden, heads * value)


def _feed_forward(draw: _Draw, prefix: str, config: dict[str, Any], hidden: int, layer: int) -> None:
    def mlp(name: str, width: int) -> None:
        draw.matrix(f"{prefix}{name}gate_proj.weight", width, hidden)
        draw.matrix(f"{prefix}{name}up_proj.weight", width, hidden)
        draw.matrix(f"{prefix}{name}down_proj.weight", hidden, width)

    if layer < config["first_k_dense_replace"]:
        mlp("", config["intermediate_size"])
        return
    draw.matrix(prefix + "gate.weight", config["n_routed_experts"], hidden)
    draw.tensors[prefix + "gate.e_score_correction_bias"] = torch.zeros(config["n_routed_experts"])
    for expert in range(config["n_routed_experts"]):
        mlp(f"experts.{expert}.", config["moe_intermediate_size"])
    mlp("shared_experts.", config["moe_intermediate_size"] * config["n_shared_experts"])
