"""Makes a tiny random model that real SGLang serves on a CPU. Runs inside `.engine`, from the repository's root:

    .engine/bin/python -m hosts.practice.engine.tiny_model OUT --family deepseek_v3 --layers 6 --dtype float32

Called by `hosts.practice.models` and by tests. The same options give the same bytes. OUT is never incomplete.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from hosts.practice.engine.families import FAMILIES, HIDDEN
from hosts.practice.engine.published import PUBLISHED, build
from hosts.practice.engine.tokenizer import BOS_ID, EOS_ID, PAD_ID, write_tokenizer
from hosts.practice.engine.weights import Weights

VOCABULARY = 512
CONTEXT_LENGTH = 4096
SEED = 0
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def make_model(out: Path, *, family: str = "deepseek_v3", layers: int = 6, dtype: str = "float32") -> int:
    """Write the model's folder at `out`, replacing an older one; return its number of parameters."""
    aside = out.with_name(f".aside-{os.getpid()}-{secrets.token_hex(4)}-{out.name}")
    aside.mkdir(parents=True)
    try:
        parameters = (_write_published if family in PUBLISHED else _write)(aside, family, layers, dtype)
        write_tokenizer(aside, CONTEXT_LENGTH)
        shutil.rmtree(out, ignore_errors=True)
        aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return parameters


def _write_published(folder: Path, family: str, layers: int, dtype: str) -> int:
    model = build(family, layers, _DTYPES[dtype], SEED)
    model.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def _write(folder: Path, family: str, layers: int, dtype: str) -> int:
    weights = _weights(family, layers, _DTYPES[dtype])
    save_file(weights.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(family, layers, dtype), indent=1))
    return sum(tensor.numel() for tensor in weights.tensors.values())


def _weights(family: str, layers: int, dtype: torch.dtype) -> Weights:
    weights = Weights(dtype, torch.Generator().manual_seed(SEED))
    weights.matrix("model.embed_tokens.weight", VOCABULARY, HIDDEN, scale=1.0)
    for index in range(layers):
        weights.norm(f"model.layers.{index}.input_layernorm.weight", HIDDEN)
        weights.norm(f"model.layers.{index}.post_attention_layernorm.weight", HIDDEN)
        FAMILIES[family].add_block(weights, index)
    weights.norm("model.norm.weight", HIDDEN)
    weights.matrix("lm_head.weight", VOCABULARY, HIDDEN)
    return weights


def _config(family: str, layers: int, dtype: str) -> dict[str, object]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "max_position_embeddings": CONTEXT_LENGTH,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "torch_dtype": dtype,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "rope_theta": 10000.0,
        **FAMILIES[family].config,
    }


def main() -> None:
    """Make the model that the command line names, and print its family, layers and parameters."""
    parser = argparse.ArgumentParser(description="Make a tiny random model directory.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--family", choices=sorted({**FAMILIES, **PUBLISHED}), default="deepseek_v3")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--dtype", choices=sorted(_DTYPES), default="float32")
    options = parser.parse_args()
    parameters = make_model(options.out, family=options.family, layers=options.layers, dtype=options.dtype)
    print(f"{options.out}: {options.family}, {options.layers} layers, {options.dtype}, {parameters} parameters")


if __name__ == "__main__":
    main()
