"""Only its sources and options decide the dataset that prepare makes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from remote.context import Context
from remote.data.chunk import ChunkWorker, Tally
from remote.data.dataset import DatasetFolder
from remote.data.encoding import FastEncoder, Marked, Spans
from remote.data.inputs import expand
from remote.data.prepare import prepare
from remote.data.sources import Chunk, scan
from remote.data.tokenizer import TokenizerSpec, load
from remote.shared.errors import RecordError, UsageError
from remote.shared.messages.dataset import PrepareRequest
from tests.remote.data.samples import GENERATION, MakeTokenizer, chat, write_jsonl


def conversations(count: int) -> list[dict[str, object]]:
    return [chat(f"question {i}", f"answer {i} " + "word " * (i % 7)) for i in range(count)]


@pytest.fixture
def tokenizer(make_tokenizer: MakeTokenizer) -> str:
    return str(make_tokenizer())


def ids_of(folder: str | Path) -> list[list[int]]:
    dataset = DatasetFolder.open(folder)
    return [record.input_ids.tolist() for record in dataset.records([(0, dataset.manifest.records)])]


def test_every_form_of_the_same_conversation_is_one_record(tmp_path: Path, tokenizer: str, context: Context) -> None:
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    forms = [
        chat("hi", "hello"),
        {"conversations": turns},
        {"prompt": "hi", "response": "hello"},
        {"prompt": [{"role": "user", "content": "hi"}], "completion": [{"role": "assistant", "content": "hello"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": "hello"},
            ]
        },
    ]
    source = write_jsonl(tmp_path / "all.jsonl", forms)
    result = prepare(PrepareRequest(inputs=[str(source)], out=str(tmp_path / "out"), tokenizer=tokenizer), context)
    assert result.manifest.records == 1
    (drop,) = result.manifest.drops
    assert (drop.records, drop.examples) == (4, ["all.jsonl:2", "all.jsonl:3", "all.jsonl:4"])


def test_datasets_loads_the_folder_as_tensors(tmp_path: Path, tokenizer: str, context: Context) -> None:
    import torch
    from datasets import load_from_disk

    source = write_jsonl(tmp_path / "s.jsonl", conversations(20))
    result = prepare(PrepareRequest(inputs=[str(source)], out=str(tmp_path / "out"), tokenizer=tokenizer), context)
    loaded = load_from_disk(result.out)
    assert loaded.column_names == ["input_ids", "loss_mask", "seq_len"]
    assert len(loaded) == 20
    assert loaded[3]["input_ids"].dtype == torch.int64
    assert loaded[3]["input_ids"].tolist() == ids_of(result.out)[3]
    assert np.load(Path(result.out) / "lengths.npy").tolist() == [len(ids) for ids in ids_of(result.out)]


def test_mask_holds_the_answer_and_the_token_that_ends_it(tmp_path: Path, tokenizer: str, context: Context) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", [chat("hi", "hello", "and?", "more", system="be brief")])
    result = prepare(PrepareRequest(inputs=[str(source)], out=str(tmp_path / "out"), tokenizer=tokenizer), context)
    record = DatasetFolder.open(result.out).record(0)
    masked = load(TokenizerSpec(tokenizer)).decode(record.input_ids[record.loss_mask == 1].tolist())
    assert masked == "hello<|im_end|>more<|im_end|>"
    assert result.manifest.mask == {"generation": 1}


def test_the_quicker_encoder_of_large_sources_makes_the_same_dataset(
    tmp_path: Path, tokenizer: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", [*conversations(60), chat("naïve 早?", "早上好 \U000e0100 e\u0301")])

    def made(name: str, processes: int) -> tuple[str, list[list[int]]]:
        request = PrepareRequest(
            inputs=[str(source)], out=str(tmp_path / name), tokenizer=tokenizer, processes=processes
        )
        return prepare(request, context).manifest.digest, ids_of(tmp_path / name)

    with_tokenizers = made("a", 1)
    monkeypatch.setattr("remote.data.prepare._WORTH_A_PROOF", 0)
    monkeypatch.setattr(FastEncoder, "encode", _left_to_it)
    assert made("b", 1) == with_tokenizers
    assert _LEFT == ["\U000e0100"]
    assert made("c", 2) == with_tokenizers


_LEFT: list[str] = []
_plainly = FastEncoder.encode


def _left_to_it(encoder: FastEncoder, texts: list[str], spans: list[Spans]) -> list[Marked]:
    """Note what is left to the `tokenizers` library."""
    _LEFT.extend("\U000e0100" if "\U000e0100" in text else text for text in texts)
    return _plainly(encoder, texts, spans)


def test_order_depends_on_the_seed_and_not_on_processes_or_chunks(
    tmp_path: Path, tokenizer: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", conversations(60))

    def made(name: str, **options: object) -> tuple[str, list[list[int]]]:
        request = PrepareRequest(
            inputs=[str(source)],
            out=str(tmp_path / name),
            tokenizer=tokenizer,
            **options,
        )
        result = prepare(request, context)
        return result.manifest.digest, ids_of(result.out)

    first = made("a", seed=1)
    monkeypatch.setattr("remote.data.sources.CHUNK_BYTES", 500)
    monkeypatch.setattr("remote.data.arrange.SHARD_TOKENS", 700)
    assert made("b", seed=1, processes=2) == first
    assert len(list((tmp_path / "b").glob("*.arrow"))) > 3
    other = made("c", seed=2)
    assert other[0] != first[0]
    assert sorted(other[1]) == sorted(first[1])
    kept = made("d", seed=None)[1]
    assert [bytes(t for t in ids if t < 256) for ids in kept] != [bytes(t for t in ids if t < 256) for ids in first[1]]
    assert DatasetFolder.open(tmp_path / "d").origins[:, 1].tolist() == list(range(1, 61))


def test_same_request_again_finds_the_dataset_and_another_is_refused(
    tmp_path: Path, tokenizer: str, context: Context
) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", conversations(5))
    request = PrepareRequest(inputs=[str(source)], out=str(tmp_path / "out"), tokenizer=tokenizer)
    first = prepare(request, context)
    again = prepare(request, context)
    assert again.reused
    assert again.manifest == first.manifest
    with pytest.raises(UsageError, match="exists, but was not made from these"):
        prepare(request.model_copy(update={"seed": 9}), context)
    assert not list(tmp_path.glob(".out*"))


def test_too_long_records_are_dropped_or_truncated_and_counted(
    tmp_path: Path, tokenizer: str, context: Context
) -> None:
    records = [chat("hi", "x" * 300), chat("hi", "short"), chat("y" * 300, "late")]
    source = write_jsonl(tmp_path / "s.jsonl", records)
    base = PrepareRequest(inputs=[str(source)], out=str(tmp_path / "a"), tokenizer=tokenizer, max_len=100)
    dropped = prepare(base, context).manifest
    assert (dropped.records, dropped.truncated) == (1, 0)
    assert {drop.reason: drop.records for drop in dropped.drops} == {"longer than 100 tokens": 2}
    cut = prepare(base.model_copy(update={"out": str(tmp_path / "b"), "too_long": "truncate"}), context).manifest
    assert (cut.records, cut.truncated, cut.max_tokens) == (2, 1, 100)
    assert {drop.reason: drop.records for drop in cut.drops} == {"no assistant token in its first 100 tokens": 1}


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ({"input_ids": [1, 2, 3], "loss_mask": [0, 0, 0]}, "all 0"),
        ({"input_ids": [1, 2, 3], "loss_mask": [1, 1, 1]}, "all 1"),
        ({"input_ids": [1, 2, 3], "loss_mask": [0, 1]}, "3 input_ids and a loss_mask of 2"),
        ({"input_ids": [1, 2, 99999], "loss_mask": [0, 1, 1]}, "99999 is outside the vocabulary"),
        ({"messages": [{"role": "user", "content": "alone"}]}, "no assistant turn"),
        ({"messages": [{"role": "wizard", "content": "?"}]}, "'wizard'"),
        ({"text": "hello"}, "its keys"),
        ([1, 2], "a list, not an object"),
    ],
)
def test_a_record_that_cannot_be_used_is_named_or_dropped_and_counted(
    tmp_path: Path, tokenizer: str, context: Context, bad: object, cause: str
) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", [chat("hi", "hello"), bad])
    request = PrepareRequest(inputs=[str(source)], out=str(tmp_path / "out"), tokenizer=tokenizer)
    with pytest.raises(RecordError) as caught:
        prepare(request, context)
    assert "s.jsonl:2" in str(caught.value)
    assert cause in str(caught.value)
    manifest = prepare(request.model_copy(update={"bad": "drop"}), context).manifest
    assert (manifest.records, [drop.records for drop in manifest.drops]) == (1, [1])


def test_an_interrupted_prepare_continues_with_its_finished_chunks(
    tmp_path: Path, tokenizer: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.data.sources.CHUNK_BYTES", 400)
    source = write_jsonl(tmp_path / "s.jsonl", conversations(40))
    request = PrepareRequest(inputs=[str(source)], out=str(tmp_path / "out"), tokenizer=tokenizer, processes=1)
    real = prepare.__globals__["spool_chunk"]
    spooled: list[Path] = []

    def interrupted(recipe: object, task: tuple[object, Path]) -> None:
        if len(spooled) == 3:
            raise KeyboardInterrupt
        spooled.append(task[1])
        real(recipe, task)

    monkeypatch.setattr("remote.data.prepare.spool_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(request, context)
    monkeypatch.setattr("remote.data.prepare.spool_chunk", real)
    records_of = ChunkWorker._records
    tokenized: list[int] = []

    def counted(self: ChunkWorker, chunk: Chunk, tally: Tally) -> object:
        tokenized.append(chunk.first)
        return records_of(self, chunk, tally)

    monkeypatch.setattr(ChunkWorker, "_records", counted)
    resumed = prepare(request, context)
    chunks_in_all = len(tokenized) + 3
    tokenized.clear()
    clean = prepare(request.model_copy(update={"out": str(tmp_path / "clean")}), context)
    assert len(tokenized) == chunks_in_all
    assert resumed.manifest == clean.manifest
    assert ids_of(resumed.out) == ids_of(clean.out)


def test_a_template_that_writes_the_date_gets_a_fixed_date(
    tmp_path: Path, make_tokenizer: MakeTokenizer, context: Context
) -> None:
    tokenizer = str(make_tokenizer("Today is {{ strftime_now('%d %b %Y') }}." + GENERATION))
    source = write_jsonl(tmp_path / "s.jsonl", [chat("hi", "hello")])
    request = PrepareRequest(inputs=[str(source)], out=str(tmp_path / "o"), tokenizer=tokenizer, date="2024-07-26")
    result = prepare(request, context)
    text = load(TokenizerSpec(tokenizer)).decode(ids_of(result.out)[0])
    assert text.startswith("Today is 26 Jul 2024.")
    assert result.manifest.date == "2024-07-26"
    with pytest.raises(UsageError, match="was not made from these"):
        prepare(request.model_copy(update={"date": "2024-07-27"}), context)


def test_a_refused_prepare_keeps_its_spool_for_the_next_command_with_other_options(
    tmp_path: Path, tokenizer: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.data.sources.CHUNK_BYTES", 400)
    records: list[object] = [*conversations(30), {"text": "?"}]
    source = write_jsonl(tmp_path / "s.jsonl", records)
    request = PrepareRequest(inputs=[str(source)], out=str(tmp_path / "o"), tokenizer=tokenizer, processes=1)
    with pytest.raises(RecordError, match=r"s\.jsonl:31"):
        prepare(request, context)
    monkeypatch.setattr(ChunkWorker, "_records", None)
    manifest = prepare(request.model_copy(update={"bad": "drop", "seed": 3}), context).manifest
    assert (manifest.records, manifest.seed, manifest.mask) == (30, 3, {"generation": 30})


def test_a_json_array_that_changed_between_two_commands_is_read_again(
    tmp_path: Path, tokenizer: str, context: Context
) -> None:
    source = tmp_path / "s.json"
    source.write_text(json.dumps([chat("hi", "hello"), {"text": "?"}]))
    request = PrepareRequest(inputs=[str(source)], out=str(tmp_path / "o"), tokenizer=tokenizer)
    with pytest.raises(RecordError, match=r"s\.json:2"):
        prepare(request, context)
    source.write_text(json.dumps([chat("hi", "hello"), chat("mended", "yes")]))
    assert prepare(request, context).manifest.records == 2


def test_if_no_record_is_left_the_reasons_are_named(tmp_path: Path, tokenizer: str, context: Context) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", [chat("hi", "x" * 100)])
    request = PrepareRequest(inputs=[str(source)], out=str(tmp_path / "o"), tokenizer=tokenizer, max_len=5)
    with pytest.raises(UsageError, match="longer than 5 tokens"):
        prepare(request, context)


def test_json_arrays_parquet_and_arrow_are_read_like_lines(
    tmp_path: Path, tokenizer: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet
    from datasets import Dataset

    monkeypatch.setattr("remote.data.divisible._BLOCK", 100)
    records = conversations(12)
    write_jsonl(tmp_path / "a.jsonl", records)
    (tmp_path / "b.json").write_text(json.dumps(records, indent=2))
    table = pa.Table.from_pylist(records)
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet", row_group_size=5)
    Dataset(table).save_to_disk(tmp_path / "saved")
    arrow = next((tmp_path / "saved").glob("*.arrow")).rename(tmp_path / "d.arrow")
    digests = set()
    for path in (tmp_path / "a.jsonl", tmp_path / "b.json", tmp_path / "c.parquet", arrow):
        out = tmp_path / f"out-{path.suffix}"
        result = prepare(PrepareRequest(inputs=[str(path)], out=str(out), tokenizer=tokenizer), context)
        assert result.manifest.records == 12
        digests.add(result.manifest.digest)
    assert len(digests) == 1


def test_large_parquet_row_groups_and_arrow_batches_are_read_in_parts_like_lines(
    tmp_path: Path, tokenizer: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    monkeypatch.setattr("remote.data.sources.CHUNK_BYTES", 400)
    monkeypatch.setattr("remote.data.sources._GROUP_BYTES", 1000)
    monkeypatch.setattr("remote.data.divisible._ROWS", 7)
    records = conversations(40)
    write_jsonl(tmp_path / "a.jsonl", records)
    table = pa.Table.from_pylist(records)
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    with pa.OSFile(str(tmp_path / "c.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    results = []
    for name in ("a.jsonl", "b.parquet", "c.arrow"):
        (file,), spool = expand([str(tmp_path / name)]).files, tmp_path / f"spool-{name}"
        spool.mkdir()
        assert len(scan(0, file, spool)[1]) > 4
        out = tmp_path / f"out-{name}"
        prepare(PrepareRequest(inputs=[str(file.path)], out=str(out), tokenizer=tokenizer), context)
        results.append((ids_of(out), DatasetFolder.open(out).origins.tolist()))
    assert results[0] == results[1] == results[2]


def test_a_damaged_parquet_file_is_an_error_that_names_the_file(
    tmp_path: Path, tokenizer: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    monkeypatch.setattr("remote.data.sources._GROUP_BYTES", 1000)
    path = tmp_path / "damaged.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(conversations(400)), path)
    content = bytearray(path.read_bytes())
    content[200:2000] = bytes(1800)
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"damaged\.parquet cannot be read"):
        prepare(PrepareRequest(inputs=[str(path)], out=str(tmp_path / "o"), tokenizer=tokenizer), context)
