"""Verify finds every planted fault, names its record, and finds nothing where nothing is wrong."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from remote.context import Context
from remote.data.export.verb import export
from remote.data.forget import forget
from remote.data.verify import verify
from remote.report import Report
from remote.shared.errors import HostError, UsageError
from remote.shared.messages.export import ExportRequest
from remote.shared.messages.verify import Fault, ForgetRequest, VerifyRequest, VerifyResult
from remote.shared.paths import Workdir
from remote.shared.transfer.ledger import DestinationLedger
from tests.remote.data.places import Destination, compress, make_destination
from tests.remote.data.samples import MakeTokenizer


@pytest.fixture(params=["BF16", "F32"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, make_tokenizer: MakeTokenizer, context: Context
) -> Destination:
    return make_destination(tmp_path / "dest", make_tokenizer(), context, dtype=request.param)


def verified(place: Destination, **options: object) -> tuple[VerifyResult, list[Fault]]:
    lines = io.StringIO()
    context = Context(Workdir(place.folder / "unused"), Report(lines))
    result = verify(VerifyRequest(folder=str(place.folder), **options), context)
    items = [json.loads(line) for line in lines.getvalue().splitlines()]
    return result, [Fault.model_validate(item["value"]) for item in items if item["type"] == "item"]


def test_an_undamaged_destination_has_no_faults(place: Destination) -> None:
    result, faults = verified(place)
    assert faults == []
    assert result.complete
    assert (result.records, result.expected) == (6, 6)


def flip_a_byte(place: Destination) -> None:
    content = bytearray(place.shard(2).read_bytes())
    content[-3] ^= 1
    place.shard(2).write_bytes(content)


def cut_short(place: Destination) -> None:
    place.shard(2).write_bytes(place.shard(2).read_bytes()[:-10])


def rewritten(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Destination], None]:
    def plant(place: Destination) -> None:
        tensors = load_file(place.shard(2))
        change(tensors)
        place.rewrite(2, {name: tensor.contiguous() for name, tensor in tensors.items()})

    return plant


def zero_middle_row(tensors: dict[str, torch.Tensor]) -> None:
    tensors["hidden_states"][5, 1] = 0


def nan_in_one_row(tensors: dict[str, torch.Tensor]) -> None:
    tensors["hidden_states"][7, 3, 2] = float("nan")


def same_rows(tensors: dict[str, torch.Tensor]) -> None:
    tensors["hidden_states"][:, 0] = tensors["hidden_states"][0, 0].clone()


def other_token(tensors: dict[str, torch.Tensor]) -> None:
    tensors["token_ids"][4] += 1


def one_row_less(tensors: dict[str, torch.Tensor]) -> None:
    tensors["hidden_states"] = tensors["hidden_states"][:-1]


def one_slot_less(tensors: dict[str, torch.Tensor]) -> None:
    tensors["hidden_states"] = tensors["hidden_states"][:, :-1]


def other_dtype(tensors: dict[str, torch.Tensor]) -> None:
    tensors["hidden_states"] = tensors["hidden_states"].to(torch.float16)


@pytest.mark.parametrize(
    ("plant", "kind", "words"),
    [
        (flip_a_byte, "digest", "the ledger says"),
        (cut_short, "size", "the ledger says"),
        (lambda place: place.shard(2).unlink(), "missing", "does not exist"),
        (rewritten(zero_middle_row), "values", "Row 5 of boundary 2 is all zeros"),
        (rewritten(nan_in_one_row), "values", "Row 7 of boundary 4 holds a value that is not finite"),
        (rewritten(same_rows), "values", "All rows of boundary 1"),
        (rewritten(other_token), "tokens", "Token 4 is"),
        (rewritten(one_row_less), "shape", "it should be"),
        (rewritten(one_slot_less), "shape", "it should be"),
        (rewritten(other_dtype), "dtype", "F16"),
    ],
)
def test_each_planted_fault_is_found_in_its_record(
    place: Destination, plant: Callable[[Destination], None], kind: str, words: str
) -> None:
    plant(place)
    result, faults = verified(place)
    assert {fault.index for fault in faults} == {2}
    assert any(fault.kind == kind and words in fault.message for fault in faults)
    assert result.requeue == [(2, 3)]
    assert not result.complete


def test_rows_that_are_not_those_of_the_forward_pass_are_found_without_the_model(place: Destination) -> None:
    tensors = load_file(place.shard(2))
    tensors["hidden_states"][[3, 5], 1] = tensors["hidden_states"][[5, 3], 1]
    place.rewrite(2, tensors)
    result, faults = verified(place)
    assert [(fault.index, fault.kind) for fault in faults] == [(2, "sums")]
    assert "The rows of boundary 2 are not those that the forward pass left" in faults[0].message
    assert (result.requeue, result.without_sums) == ([(2, 3)], 0)


def test_shards_of_an_older_roost_without_row_sums_are_counted(place: Destination) -> None:
    tensors = load_file(place.shard(2))
    place.shard(2).unlink()
    place.rewrite(2, tensors)
    result, faults = verified(place)
    assert (faults, result.without_sums, result.complete) == ([], 1, True)


def test_extra_files_and_missing_records_are_distinguished_from_faulty_shards(place: Destination) -> None:
    save_file({"x": torch.zeros(1)}, place.shard(77))
    (place.folder / "hidden_states" / ".aside-1-x").write_bytes(b"")
    with DestinationLedger(place.folder / "roost" / "ledger.sqlite") as ledger:
        ledger.forget([3, 4])
    result, faults = verified(place)
    assert sorted(fault.file for fault in faults) == [
        ".aside-1-x",
        "hs_3.safetensors",
        "hs_4.safetensors",
        "hs_77.safetensors",
    ]
    assert {fault.kind for fault in faults} == {"stranger"}
    assert result.holes == [(3, 5)]
    assert result.requeue == []
    assert not result.complete


def test_compressed_records_are_checked_by_their_plain_bytes(place: Destination) -> None:
    container = compress(place, 2)
    assert verified(place)[1] == []
    content = bytearray(container.read_bytes())
    content[len(content) // 2] ^= 1
    container.write_bytes(content)
    result, faults = verified(place)
    assert {fault.index for fault in faults} == {2}
    assert result.requeue == [(2, 3)]


def test_without_digests_only_headers_are_read(place: Destination) -> None:
    flip_a_byte(place)
    assert verified(place, digests=False)[1] == []
    cut_short(place)
    assert verified(place, digests=False)[0].by_kind["size"] == 1


def test_a_folder_that_is_no_destination_is_refused(tmp_path: Path, context: Context) -> None:
    with pytest.raises(UsageError, match="is not the destination of a pull"):
        verify(VerifyRequest(folder=str(tmp_path)), context)
    with pytest.raises(UsageError, match="either a folder or a run"):
        verify(VerifyRequest(), context)


def test_an_export_is_distinguished_from_its_destination(place: Destination, tmp_path: Path, context: Context) -> None:
    out = tmp_path / "export"
    export(ExportRequest(folder=str(place.folder), out=str(out), processes=1), context)
    with pytest.raises(UsageError, match="is an export") as caught:
        verify(VerifyRequest(folder=str(out)), context)
    assert "inv pull --to" in caught.value.remedy


def test_forgotten_records_are_gone_from_folder_and_ledger(place: Destination, context: Context) -> None:
    compress(place, 4)
    flip_a_byte(place)
    wrong = verified(place)[0].requeue
    assert (
        forget(
            ForgetRequest(identity=place.identity, folder=str(place.folder), ranges=[*wrong, (4, 5)]), context
        ).records
        == 2
    )
    result, faults = verified(place)
    assert faults == []
    assert result.holes == [(2, 3), (4, 5)]


def test_a_place_without_its_dataset_is_checked_and_says_so(place: Destination) -> None:
    (place.folder / "manifest.json").unlink()
    result, faults = verified(place)
    assert (faults, result.complete, result.has_dataset) == ([], True, False)
    place.shard(4).unlink()
    flip_a_byte(place)
    _, faults = verified(place)
    assert sorted(fault.kind for fault in faults) == ["digest", "missing"]


def test_a_shard_of_another_run_is_a_fault_and_is_not_exported(
    place: Destination, tmp_path: Path, context: Context
) -> None:
    other = Destination(place.folder, place.identity.model_copy(update={"nonce": "0" * 16}))
    other.rewrite(3, load_file(place.shard(3)), summed=True)
    _, faults = verified(place)
    assert [(fault.kind, fault.index) for fault in faults if fault.kind == "run"] == [("run", 3)]
    assert place.identity.digest in faults[0].message
    assert other.identity.digest in faults[0].message
    with pytest.raises(HostError, match=f"Record 3 could not be exported .* {other.identity.digest}"):
        export(ExportRequest(folder=str(place.folder), out=str(tmp_path / "out"), processes=1), context)
