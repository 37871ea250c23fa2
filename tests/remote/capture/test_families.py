"""Every family that SGLang serves on a CPU, on real SGLang in float32: the same tests for each model of a table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from remote.parity.canary import check_canary
from remote.parity.head import load_head
from remote.parity.logprobs import ServerLogprobs, deviations
from remote.shared.shard.layout import Layout
from remote.shared.shard.request_id import RequestId
from tests.remote.capture.cases import CHUNK, DEPTH, FAULTS, LAYERS, MODELS, Model
from tests.remote.capture.conftest import RELATIVE

pytestmark = pytest.mark.engine

LENGTHS = (9, 130, CHUNK, CHUNK + 1, 40)
Prompts = Callable[..., list[list[int]]]
Check = Callable[..., float]


@dataclass
class Served:
    """A family's tiny model and the capturing server that runs it."""

    model: Model
    folder: Path
    server: Any

    def capture(self, prompts: list[list[int]], nonce: str) -> list[Path]:
        found: list[Path] = self.server.capture(prompts, nonce)
        return found


SHORT = ("deepseek_v3", "qwen3_moe", "gemma3", "glm4_moe")
"""A dense model, mixtures, and both ways in which a residual travels; `make test-long` asks every family."""


def _param(model: Model) -> Any:
    return pytest.param(model, id=model.name, marks=() if model.name in SHORT else pytest.mark.long)


@pytest.fixture(scope="module", params=[_param(model) for model in MODELS if model.on_cpu])
def served(request: Any, capturing: Callable[..., Any], tiny_model_of: Callable[..., Path]) -> Iterator[Served]:
    model: Model = request.param
    flags = ("--chunked-prefill-size", str(CHUNK), *model.flags)
    with capturing(model.name, flags, layers=LAYERS) as server:
        yield Served(model, tiny_model_of(model.name), server)


def test_every_slot_of_every_row_equals_transformers(served: Served, prompts_of: Prompts, assert_right: Check) -> None:
    """Unequal prompts at once, chunked and around a chunk; then prompts with a shared prefix, one of them twice."""
    batch = prompts_of(20, *LENGTHS)
    prefix, one, other = prompts_of(21, 70, 10, 12)
    shared = [prefix + one, prefix + other, prefix + one]
    dumps = [*served.capture(batch, "batch"), *served.capture(shared, "shared")]
    for dump, prompt in zip(dumps, [*batch, *shared], strict=True):
        assert assert_right(dump, prompt, LAYERS, served.model.name) <= RELATIVE


def test_the_canary_hears_every_boundary_and_names_every_planted_fault(
    served: Served, prompts_of: Prompts, tmp_path: Path
) -> None:
    rid = RequestId("canary", None, 0, CHUNK + 16)
    prompt = prompts_of(22, CHUNK + 16)[0]
    served.server.generate(prompt, str(rid))
    listened = served.server.await_one([served.server.dumps / f"{rid}.canary.safetensors"])
    assert check_canary(served.server.outcome(rid), [listened]).passed
    heard = load_file(listened)["boundaries"].transpose(0, 1).contiguous()
    for name, fault in FAULTS.items():
        for slot, boundary in [(1, LAYERS[1]), (len(LAYERS), DEPTH)]:
            rows = torch.stack([heard[k] for k in (*LAYERS, DEPTH)], dim=1)
            rows[:, slot] = fault(heard, boundary)
            checked = check_canary(write_dump(tmp_path / "planted.safetensors", rows, prompt), [listened])
            assert [check.slot for check in checked.slots if not check.passed] == [slot], name


def write_dump(path: Path, states: torch.Tensor, tokens: list[int]) -> Path:
    layout = Layout(len(tokens), states.shape[1], states.shape[2], "F32")
    header = layout.header({"boundaries": json.dumps([*LAYERS, DEPTH]), "final": "pre"})
    ids = torch.tensor(tokens, dtype=torch.int64)
    path.write_bytes(header + ids.numpy().tobytes() + states.contiguous().numpy().tobytes())
    return path


def test_every_rows_logprob_equals_the_servers(
    served: Served, prompts_of: Prompts, read_dump: Callable[[Path], Any]
) -> None:
    """As extraction compares them: from the checkpoint's own norm and head."""
    head, prompt = load_head(served.folder), prompts_of(23, 150)[0]
    rid = RequestId("parity", 0, 0, len(prompt))
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
    said = ServerLogprobs.of_answer(served.server.generate(prompt, str(rid), **asked)["meta_info"])
    rows = read_dump(served.server.outcome(rid)).states[:, -1]
    found = deviations(rows, prompt, said, head.norm_weight, head.eps, head.lm_head, head.dtype).summary()
    assert found.passed, str(found)
    assert (found.rows, found.top1) == (150, 1.0)
    early = deviations(rows.roll(1, 0), prompt, said, head.norm_weight, head.eps, head.lm_head, head.dtype).summary()
    assert not early.passed


def test_a_prefix_that_came_from_the_cache_fails_the_record(
    capturing: Any, prompts_of: Prompts, assert_right: Check
) -> None:
    prompts = prompts_of(21, *LENGTHS)
    with capturing("qwen3", ("--chunked-prefill-size", str(CHUNK)), layers=LAYERS, radix=True) as server:
        for path, prompt in zip(server.capture(prompts, "first"), prompts, strict=True):
            assert_right(path, prompt, LAYERS, "qwen3")
        for path in server.capture(prompts, "cached"):
            assert path.suffix == ".json"
            assert "were served from a prefix cache" in json.loads(path.read_text())["cause"]


def test_kimi_k2_5_around_a_deepseek_v3(
    capturing: Any, tiny_model_of: Callable[..., Path], prompts_of: Prompts, assert_right: Check, tmp_path: Path
) -> None:
    prompts = prompts_of(23, *LENGTHS)
    model = wrapped(tiny_model_of("deepseek_v3"), tmp_path / "kimi")
    with capturing(flags=("--chunked-prefill-size", str(CHUNK)), layers=LAYERS, model=model) as server:
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
    capturing: Any, prompts_of: Prompts, reference_of: Callable[..., Any], read_dump: Callable[..., Any]
) -> None:
    prompts = prompts_of(22, *LENGTHS)
    with capturing("llama", ("--chunked-prefill-size", str(CHUNK)), layers=LAYERS, final="post") as server:
        for path, prompt in zip(server.capture(prompts, "post"), prompts, strict=True):
            dump, reference = read_dump(path), reference_of("llama")
            truth = reference.boundaries(prompt)
            for slot, boundary in enumerate(LAYERS):
                assert_close(dump.states[:, slot], truth[boundary])
            assert_close(dump.states[:, -1], reference.normed(prompt))
            assert dump.metadata["final"] == "post"


def assert_close(found: Any, wanted: Any) -> None:
    assert float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max()) <= 1e-5
