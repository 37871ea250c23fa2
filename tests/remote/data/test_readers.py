"""The trainers' own loaders, each in its own venv, read the shards' states from an export."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hosts.practice.readers import reader_python
from remote.context import Context
from remote.data.dataset import DatasetFolder
from remote.data.export.norm import final_norm
from remote.data.export.verb import export
from remote.shared.messages.export import ExportRequest, ExportResult
from tests.remote.data.places import HIDDEN, Destination, make_destination
from tests.remote.data.samples import MakeTokenizer

pytestmark = pytest.mark.reader

SCRIPTS = Path(__file__).parent / "readers"
RECORDS = 5


@pytest.fixture
def place(tmp_path: Path, make_tokenizer: MakeTokenizer, context: Context) -> Destination:
    return make_destination(tmp_path / "dest", make_tokenizer(), context, records=RECORDS)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=HIDDEN, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2
    )
    made = LlamaForCausalLM(config)
    torch.nn.init.uniform_(made.model.norm.weight, 0.5, 2)
    made.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def read(reader: str, script: str, *arguments: str) -> Any:
    """The script's answer; importing a trainer takes far longer than reading, so a script takes several folders."""
    command = [str(reader_python(reader)), "-W", "ignore::DeprecationWarning", str(SCRIPTS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def exported(place: Destination, context: Context, name: str, **options: Any) -> ExportResult:
    return export(ExportRequest(folder=str(place.folder), out=str(place.folder.with_name(name)), **options), context)


def check(found: list[dict[str, Any]], place: Destination, model: Path | None = None) -> None:
    """Tokens, masks, shapes and sums of every record; with `model`, of the final state after its norm."""
    assert len(found) == RECORDS
    dataset = DatasetFolder.open(place.folder)
    for index, sample in enumerate(found):
        record, states = dataset.record(index), load_file(place.shard(index))["hidden_states"]
        final = states[:, -1] if model is None else final_norm(model, HIDDEN)(states[:, -1])
        assert sample["input_ids"] == record.input_ids.tolist()
        assert sample["loss_mask"] == record.loss_mask.tolist()
        assert sample["aux_shape"][-2:] == [len(record.input_ids), 3 * HIDDEN]
        assert sample["aux"] == pytest.approx(states[:, :-1].double().sum().item(), abs=1e-9)
        assert sample["final"] == pytest.approx(final.double().sum().item(), abs=1e-9)


def test_speculators_loads_a_destination_and_trains_a_step_on_it(
    place: Destination, model: Path, context: Context
) -> None:
    folders = [str(place.folder), exported(place, context, "out").load]
    answers = read("speculators-0.9.0", "speculators_arrow.py", str(model), *folders)
    assert len(answers) == len(folders)
    for answer in answers:
        check(answer["records"], place)
        before, after = answer["losses"]
        assert 0 < after < before


def test_speculators_loads_float8_with_the_error_that_the_card_names(place: Destination, context: Context) -> None:
    for index in range(RECORDS):
        tensors = load_file(place.shard(index))
        growing = tensors["hidden_states"] * torch.tensor([1.0, 60, 3600, 216000])[:, None]
        place.rewrite(index, {**tensors, "hidden_states": growing.to(torch.bfloat16)}, summed=True)
    result = exported(place, context, "fp8", dtype="fp8")
    answer = read("speculators-0.9.0", "speculators_fp8.py", str(place.folder), result.load)
    dataset = DatasetFolder.open(place.folder)
    for index, sample in enumerate(answer["records"]):
        assert sample["input_ids"] == dataset.record(index).input_ids.tolist()
        states = load_file(place.shard(index))["hidden_states"].float()
        off = (torch.tensor(sample["states"]) - states).abs()
        assert (off <= states.abs() / 15 + states.abs().amax(-1, keepdim=True) / 2**18).all()  # half of the last bit
    assert (answer["collated"], answer["unscaled"]) == ("torch.bfloat16", "torch.float8_e4m3fn")
    assert [slot.mean for slot in result.card.errors] == pytest.approx(answer["errors"], rel=1e-9)
    assert 0 < max(answer["errors"]) < 0.04
    assert answer["own_errors"][0] > 2 * answer["errors"][0]  # one scale a token leaves the first slot few bits


def test_speculators_legacy_loader_reads_v1(place: Destination, context: Context) -> None:
    result = exported(place, context, "out", format="speculators-v1")
    found = read("speculators-0.7.0.1", "speculators_v1.py", result.load)["records"]
    check(found, place)
    assert [sample["length"] for sample in found] == [len(sample["input_ids"]) for sample in found]


def test_specforge_reads_its_offline_features(place: Destination, model: Path, context: Context) -> None:
    result = exported(place, context, "out", format="specforge", model=str(model))
    found = read("specforge-0.2.0", "specforge_offline.py", result.load)["records"]
    check(found, place, model)
    assert [sample["tokens"] for sample in found] == [len(sample["input_ids"]) for sample in found]


def test_model_optimizer_reads_its_dumps_before_and_after_the_norm(
    place: Destination, model: Path, context: Context
) -> None:
    before = exported(place, context, "before", format="model-optimizer")
    after = exported(place, context, "after", format="model-optimizer", model=str(model))
    answers = read("modelopt-0.47.0", "modelopt_offline.py", before.load, after.load)
    for answer, norm in zip(answers, [None, model], strict=True):
        check(answer["records"], place, norm)
        assert {sample["prenorm"] for sample in answer["records"]} == {norm is None}
