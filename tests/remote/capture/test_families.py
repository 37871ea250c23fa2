"""The other model families on real SGLang: boundaries, the state after the last norm, and a prefix cache left on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.remote.capture.conftest import RELATIVE

pytestmark = pytest.mark.engine

LAYERS = (1, 3, 6 - 1)
LENGTHS = (9, 130, 64, 40)


def test_qwen3_moe(capturing: Any, prompts_of: Callable[..., Any], assert_right: Callable[..., float]) -> None:
    prompts = prompts_of(20, *LENGTHS)
    with capturing("qwen3_moe", ("--chunked-prefill-size", "64"), layers=LAYERS) as server:
        dumps = server.capture(prompts, "moe")
        errors = [assert_right(dump, prompt, LAYERS, "qwen3_moe") for dump, prompt in zip(dumps, prompts, strict=True)]
    assert max(errors) <= RELATIVE


def test_qwen3_and_a_prefix_that_came_from_the_cache(
    capturing: Any, prompts_of: Callable[..., Any], assert_right: Callable[..., float]
) -> None:
    prompts = prompts_of(21, *LENGTHS)
    with capturing("qwen3", ("--chunked-prefill-size", "64"), layers=LAYERS, radix=True) as server:
        for path, prompt in zip(server.capture(prompts, "first"), prompts, strict=True):
            assert_right(path, prompt, LAYERS, "qwen3")
        for path in server.capture(prompts, "cached"):
            assert path.suffix == ".json"
            assert "were served from a prefix cache" in json.loads(path.read_text())["cause"]


def test_kimi_k2_5_around_a_deepseek_v3(
    capturing: Any,
    tiny_model_of: Callable[..., Path],
    prompts_of: Callable[..., Any],
    assert_right: Callable[..., float],
    tmp_path: Path,
) -> None:
    prompts = prompts_of(23, *LENGTHS)
    model = wrapped(tiny_model_of("deepseek_v3"), tmp_path / "kimi")
    with capturing(flags=("--chunked-prefill-size", "64"), layers=LAYERS, model=model) as server:
        dumps = server.capture(prompts, "kimi")
        errors = [assert_right(dump, prompt, LAYERS) for dump, prompt in zip(dumps, prompts, strict=True)]
    assert max(errors) <= RELATIVE


def wrapped(inner: Path, out: Path) -> Path:
    """The model as Kimi-K2.5 holds its language model: beside a vision tower (tiny here), served for text alone."""
    shutil.copytree(inner, out)
    text = json.loads((inner / "config.json").read_text())
    vision = {"num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64}
    vision |= {"init_pos_emb_height": 4, "init_pos_emb_width": 4, "mm_hidden_size": 32, "vt_hidden_size": 32}
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text,
        "vision_config": {**vision, "text_hidden_size": text["hidden_size"]},
        # SGLang's own name for a checkpoint that is served without its processor.
        "language_model_only": True,
        **{key: text[key] for key in ("torch_dtype", "pad_token_id", "bos_token_id", "eos_token_id")},
    }
    (out / "config.json").write_text(json.dumps(config))
    tensors = load_file(inner / "model.safetensors")
    named = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_llama_with_the_state_after_the_last_norm(
    capturing: Any,
    prompts_of: Callable[..., Any],
    reference_of: Callable[..., Any],
    read_dump: Callable[..., Any],
) -> None:
    prompts = prompts_of(22, *LENGTHS)
    with capturing("llama", ("--chunked-prefill-size", "64"), layers=LAYERS, final="post") as server:
        for path, prompt in zip(server.capture(prompts, "post"), prompts, strict=True):
            dump, reference = read_dump(path), reference_of("llama")
            truth = reference.boundaries(prompt)
            for slot, boundary in enumerate(LAYERS):
                assert_close(dump.states[:, slot], truth[boundary])
            assert_close(dump.states[:, -1], reference.normed(prompt))
            assert dump.metadata["final"] == "post"


def assert_close(found: Any, wanted: Any) -> None:
    assert float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max()) <= 1e-5
