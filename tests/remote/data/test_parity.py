"""With the model at hand, `verify` compares a sample with transformers and sees wrong layers and norms."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from remote.context import Context
from remote.data.reference import Reference
from remote.data.verify import verify
from remote.report import Report
from remote.shared.messages.verify import VerifyRequest, VerifyResult
from remote.shared.paths import Workdir
from tests.remote.data.places import HIDDEN, Destination, make_destination
from tests.remote.data.samples import MakeTokenizer

BLOCKS = 4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=HIDDEN, intermediate_size=16, num_hidden_layers=BLOCKS, num_attention_heads=2
    )
    made = LlamaForCausalLM(config)
    torch.nn.init.uniform_(made.model.norm.weight, 0.5, 2)
    made.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def place(tmp_path: Path, make_tokenizer: MakeTokenizer, context: Context, model: Path) -> Destination:
    """A destination whose shards hold what the model computes, taken from its own `output_hidden_states`."""
    from transformers import AutoModelForCausalLM

    made = make_destination(tmp_path / "dest", make_tokenizer(), context, dtype="F32", records=3)
    language_model = AutoModelForCausalLM.from_pretrained(model).eval()
    before_norm: list[torch.Tensor] = []
    language_model.model.norm.register_forward_pre_hook(lambda module, inputs: before_norm.append(inputs[0][0]))
    for index in range(3):
        tensors = load_file(made.shard(index))
        with torch.no_grad():
            out = language_model(tensors["token_ids"][None], output_hidden_states=True)
        slots = [*(out.hidden_states[k][0] for k in made.identity.boundaries[:-1]), before_norm.pop()]
        made.rewrite(index, {**tensors, "hidden_states": torch.stack(slots, 1)}, summed=True)
    return made


def checked(place: Destination, model: Path) -> tuple[VerifyResult, str]:
    lines = io.StringIO()
    context = Context(Workdir(place.folder), Report(lines))
    request = VerifyRequest(folder=str(place.folder), model=str(model), parity_records=3)
    return verify(request, context), lines.getvalue()


def test_correct_states_are_within_float32_rounding(place: Destination, model: Path) -> None:
    result, _ = checked(place, model)
    assert result.complete
    assert [parity.index for parity in result.parity] == [0, 1, 2]
    assert max(max(parity.errors) for parity in result.parity) < 1e-5


def shifted(states: torch.Tensor) -> torch.Tensor:
    return states.roll(1, 0)


def one_boundary_early(states: torch.Tensor) -> torch.Tensor:
    return torch.cat([states[:, :1], states[:, :-2], states[:, -1:]], 1)


def neighbours_final(states: torch.Tensor) -> torch.Tensor:
    return torch.cat([states[:, :-1], states[:, -2:-1]], 1)


@pytest.mark.parametrize("wrong", [shifted, one_boundary_early, neighbours_final])
def test_wrong_states_with_right_digests_are_seen(
    place: Destination, model: Path, wrong: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    tensors = load_file(place.shard(1))
    states = wrong(tensors["hidden_states"]).contiguous()
    place.rewrite(1, {**tensors, "hidden_states": states}, summed=True)
    result, lines = checked(place, model)
    assert result.by_kind == {"parity": 1}
    assert result.requeue == [(1, 2)]
    assert "from what transformers computes" in lines


def test_the_state_after_the_norm_is_distinguished_from_the_state_before(place: Destination, model: Path) -> None:
    ids = load_file(place.shard(0))["token_ids"].numpy()
    before = Reference(model, place.identity).states(ids)
    after = Reference(model, place.identity.model_copy(update={"final": "post"})).states(ids)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1], rtol=0.1)
    assert json.loads((model / "config.json").read_text())["num_hidden_layers"] == BLOCKS
