"""Every layout has the same states as the shards, names records by their index, and describes itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from remote.context import Context
from remote.data.dataset import DatasetFolder
from remote.data.export.fp8 import dequantize, quantize, relative_errors
from remote.data.export.norm import final_norm
from remote.data.export.sample import read_tensors
from remote.data.export.verb import export
from remote.data.verify import verify
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.export import ExportCard, ExportRequest, ExportResult
from remote.shared.messages.verify import VerifyRequest
from remote.shared.shard.tensorfile import read_metadata
from remote.shared.transfer.ledger import DestinationLedger
from tests.remote.data.places import HIDDEN, Destination, compress, make_destination
from tests.remote.data.samples import MakeTokenizer


@pytest.fixture
def place(tmp_path: Path, make_tokenizer: MakeTokenizer, context: Context) -> Destination:
    return make_destination(tmp_path / "dest", make_tokenizer(), context)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"model_type": "llama", "rms_norm_eps": 1e-5, "hidden_size": HIDDEN}
    (folder / "config.json").write_text(json.dumps(config))
    weight = torch.linspace(0.5, 2, HIDDEN)
    tensors = {"model.norm.weight": weight, "model.layers.0.norm.weight": weight + 1}
    save_file(tensors, folder / "model.safetensors")
    return folder


def exported(place: Destination, out: Path, context: Context, **options: object) -> ExportResult:
    return export(ExportRequest(folder=str(place.folder), out=str(out), **options), context)


def test_speculators_shards_are_links_beside_the_dataset(place: Destination, tmp_path: Path, context: Context) -> None:
    result = exported(place, tmp_path / "out", context)
    assert (result.linked, result.written_bytes) == (6, 0)
    for index in range(6):
        assert (tmp_path / "out" / "hidden_states" / f"hs_{index}.safetensors").samefile(place.shard(index))
    assert DatasetFolder.open(result.load).manifest == DatasetFolder.open(place.folder).manifest
    frequencies = torch.load(tmp_path / "out" / "token_freq.pt", weights_only=True)
    assert sum(frequencies.values()) == DatasetFolder.open(place.folder).manifest.loss_tokens


def test_v1_is_a_list_of_states_with_the_final_one_last(place: Destination, tmp_path: Path, context: Context) -> None:
    result = exported(place, tmp_path / "out", context, format="speculators-v1")
    data = Path(result.load)
    shard, sample = load_file(place.shard(3)), torch.load(data / "data_3.pt", mmap=True, weights_only=True)
    assert torch.equal(torch.stack(sample["hidden_states"], 1), shard["hidden_states"])
    assert torch.equal(sample["input_ids"], shard["token_ids"])
    assert sample["loss_mask"].dtype == torch.int64
    assert sample["loss_mask"].tolist() == DatasetFolder.open(place.folder).record(3).loss_mask.tolist()
    assert json.loads((data / "sample_lengths.json").read_text())["3"] == len(shard["token_ids"])
    greedy = [path for path in data.rglob("*") if path.name.endswith("pt")]
    assert sorted(path.name for path in greedy) == [f"data_{index}.pt" for index in range(6)]
    assert (data / "data_3.pt").stat().st_size < place.shard(3).stat().st_size + 4096


def test_specforge_gets_the_state_after_the_norm(
    place: Destination, model: Path, tmp_path: Path, context: Context
) -> None:
    result = exported(place, tmp_path / "out", context, format="specforge", model=str(model))
    sample = torch.load(Path(result.load) / "rows_0-2000" / "data_4.ckpt", weights_only=True)
    states = load_file(place.shard(4))["hidden_states"]
    final = states[:, -1].float()
    weight = torch.linspace(0.5, 2, HIDDEN)
    wanted = final / (final.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert torch.equal(sample["hidden_state"], wanted.to(torch.bfloat16).unsqueeze(0))
    assert torch.equal(sample["aux_hidden_state"], states[:, :-1].flatten(1).unsqueeze(0))
    assert result.card.final_state == "post"
    assert result.card.norm.endswith("@1e-05")


@pytest.mark.parametrize("with_model", [False, True])
def test_model_optimizers_dumps_name_their_norm_state(
    place: Destination, model: Path, tmp_path: Path, context: Context, with_model: bool
) -> None:
    options = {"model": str(model)} if with_model else {}
    result = exported(place, tmp_path / "out", context, format="model-optimizer", **options)
    sample = torch.load(Path(result.load) / "roost-000000002.pt", weights_only=True)
    final = load_file(place.shard(2))["hidden_states"][:, -1]
    assert sample["hidden_states_prenorm"] is not with_model
    assert torch.equal(sample["hidden_states"], final) is not with_model
    assert sample["conversation_id"] == "roost-000000002"


def test_norm_states_that_cannot_be_computed_are_refused(
    tmp_path: Path, make_tokenizer: MakeTokenizer, context: Context, place: Destination
) -> None:
    after = make_destination(tmp_path / "post", make_tokenizer(), context, final="post")
    with pytest.raises(UsageError, match="before the last norm"):
        exported(after, tmp_path / "a", context)
    with pytest.raises(UsageError, match="--model"):
        exported(place, tmp_path / "b", context, format="specforge")
    assert exported(after, tmp_path / "c", context, format="specforge").card.norm == ""


def test_missing_records_are_refused_or_left_out_by_name(place: Destination, tmp_path: Path, context: Context) -> None:
    with DestinationLedger(place.folder / "roost" / "ledger.sqlite") as ledger:
        ledger.forget([1])
    with pytest.raises(UsageError, match="1 of 6 records"):
        exported(place, tmp_path / "out", context, format="speculators-v1")
    result = exported(place, tmp_path / "out", context, format="speculators-v1", partial=True)
    assert result.card.missing == 1
    assert not (Path(result.load) / "data_1.pt").exists()
    assert (Path(result.load) / "data_2.pt").exists()
    assert "1 record of the dataset is missing" in (tmp_path / "out" / "README.md").read_text()


def test_an_interrupted_export_keeps_its_records(place: Destination, tmp_path: Path, context: Context) -> None:
    whole = exported(place, tmp_path / "out", context, format="speculators-v1")
    kept = Path(whole.load) / "data_0.pt"
    before = kept.stat().st_mtime_ns
    (Path(whole.load) / "data_5.pt").unlink()
    again = exported(place, tmp_path / "out", context, format="speculators-v1", processes=1)
    assert again.card == whole.card
    assert kept.stat().st_mtime_ns == before
    assert (Path(whole.load) / "data_5.pt").exists()
    with pytest.raises(UsageError, match="does not hold this export"):
        exported(place, tmp_path / "out", context)
    with pytest.raises(UsageError, match="cannot be written into its own source"):
        exported(place, place.folder / "inside", context)


def test_a_shard_that_is_gone_is_named(place: Destination, tmp_path: Path, context: Context) -> None:
    place.shard(4).unlink()
    with pytest.raises(HostError, match="Record 4 could not be exported"):
        exported(place, tmp_path / "out", context)


def test_card_names_layers_in_both_conventions(place: Destination, tmp_path: Path, context: Context) -> None:
    exported(place, tmp_path / "out", context)
    card = ExportCard.model_validate_json((tmp_path / "out" / "roost" / "export.json").read_bytes())
    assert card.identity.boundaries == (1, 2, 3, 4)
    assert card.blocks == [0, 1, 2, 3]
    text = (tmp_path / "out" / "README.md").read_text()
    for part in ("boundaries [1, 2, 3, 4]", "[0, 1, 2, 3]", "pre-norm", "ArrowDataset", card.content):
        assert part in text


def test_norm_of_an_unclear_model_is_refused(model: Path) -> None:
    assert final_norm(model, HIDDEN).weight.tolist() == torch.linspace(0.5, 2, HIDDEN).tolist()
    (model / "config.json").write_text(json.dumps({"hidden_size": HIDDEN, "layer_norm_epsilon": 1e-5}))
    with pytest.raises(HostError, match="rms_norm_eps"):
        final_norm(model, HIDDEN)
    (model / "config.json").write_text(json.dumps({"rms_norm_eps": 1e-5}))
    with pytest.raises(HostError, match="the states have 9"):
        final_norm(model, HIDDEN + 1)


@pytest.mark.parametrize("layout", ["speculators", "speculators-v1"])
def test_compressed_records_are_unpacked(place: Destination, tmp_path: Path, context: Context, layout: str) -> None:
    states = load_file(place.shard(2))["hidden_states"]
    compress(place, 2)
    result = exported(place, tmp_path / "out", context, format=layout)
    if layout == "speculators":
        found = load_file(tmp_path / "out" / "hidden_states" / "hs_2.safetensors")["hidden_states"]
        assert result.linked == 5
    else:
        found = torch.stack(torch.load(Path(result.load) / "data_2.pt", weights_only=True)["hidden_states"], 1)
    assert torch.equal(found, states)


def test_float8_export_names_its_error_and_is_no_shard_of_the_run(
    place: Destination, tmp_path: Path, context: Context
) -> None:
    compress(place, 2)
    result = exported(place, tmp_path / "out", context, dtype="fp8")
    assert result.linked == 0
    sums = torch.zeros(4, dtype=torch.float64)
    for index in range(6):
        path = tmp_path / "out" / "hidden_states" / f"hs_{index}.safetensors"
        held, tensors = read_metadata(path), load_file(path)
        assert held["made_from_run_digest"] == place.identity.digest
        assert not {"run", "run_digest", "row_sums"} & held.keys()
        assert place.identity.mismatch(held)
        assert tensors["hidden_states"].dtype == torch.float8_e4m3fn
        scales = tensors["hidden_states_scales"]
        assert torch.equal(scales, scales.to(torch.bfloat16).float())
        plain, loaded = read_tensors(place_path(place, index))[1], dequantize(tensors["hidden_states"], scales)
        assert loaded.shape == plain.shape
        sums += ((loaded.double() - plain.double()).norm(dim=-1) / plain.double().norm(dim=-1)).sum(0)
    assert [slot.boundary for slot in result.card.errors] == [1, 2, 3, 4]
    assert [slot.mean for slot in result.card.errors] == pytest.approx((sums / result.card.tokens).tolist())
    text = (tmp_path / "out" / "README.md").read_text()
    assert all(f"| {slot.boundary} | {slot.mean:.3%} | {slot.worst:.3%} |" in text for slot in result.card.errors)
    with pytest.raises(UsageError, match=r"is an export, which has no ledger"):
        verify(VerifyRequest(folder=str(tmp_path / "out")), context)


def place_path(place: Destination, index: int) -> Path:
    """Where record `index` is kept, compressed or not."""
    return next(path for path in place.shard(index).parent.iterdir() if path.name.startswith(f"hs_{index}."))


def test_an_interrupted_float8_export_knows_the_errors_of_its_records(
    place: Destination, tmp_path: Path, context: Context
) -> None:
    whole = exported(place, tmp_path / "out", context, dtype="fp8", processes=1)
    kept, lost = (tmp_path / "out" / "hidden_states" / f"hs_{index}.safetensors" for index in (0, 5))
    before = kept.stat().st_mtime_ns
    lost.unlink()
    again = exported(place, tmp_path / "out", context, dtype="fp8", processes=2)
    assert again.card == whole.card
    assert kept.stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="does not hold this export"):
        exported(place, tmp_path / "out", context)
    save_file(load_file(kept), kept)
    with pytest.raises(HostError, match=r"hs_0\.safetensors exists, but"):
        exported(place, tmp_path / "out", context, dtype="fp8")


def test_float8_is_refused_where_no_loader_reads_it_and_for_values_it_cannot_hold(
    place: Destination, tmp_path: Path, context: Context
) -> None:
    with pytest.raises(UsageError, match="No loader of the format specforge"):
        exported(place, tmp_path / "a", context, format="specforge", dtype="fp8")
    tensors = load_file(place.shard(1))
    tensors["hidden_states"][0, 2, 3] = float("inf")
    place.rewrite(1, tensors)
    with pytest.raises(HostError, match="Record 1 has values that are not finite"):
        exported(place, tmp_path / "b", context, dtype="fp8")


@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 448.0, 449.0, 1e30])
def test_float8_keeps_rows_of_any_size_apart(size: float) -> None:
    states = torch.randn(3, 2, 64, generator=torch.Generator().manual_seed(1))
    states[1] *= size
    packed, scales = quantize(states)
    errors = relative_errors(states, dequantize(packed, scales))
    assert scales.shape == (3, 2, 1)
    assert errors.max() < 0.04
    assert errors[0].min() > 0
    assert (errors[1] == 0).all() == (size == 0)
