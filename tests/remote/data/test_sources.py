"""Every named input file is read, plain, compressed or in a bucket, or reported as not read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zstandard

from remote.context import Context
from remote.data.dataset import DatasetFolder
from remote.data.inputs import InputFile, expand
from remote.data.prepare import prepare
from remote.data.tokenizer import TokenizerSpec, load
from remote.shared.errors import HostError, RecordError, UsageError
from remote.shared.messages.dataset import PrepareRequest, PrepareResult
from tests.remote.data import templates
from tests.remote.data.samples import MakeTokenizer, chat, write_jsonl

Prepare = Callable[..., PrepareResult]


@pytest.fixture
def prepared(tmp_path: Path, make_tokenizer: MakeTokenizer, context: Context) -> Prepare:
    tokenizer = str(make_tokenizer(templates.CHATML))

    def made(*inputs: str | Path, **options: Any) -> PrepareResult:
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        fields = {"tokenizer": tokenizer, "seed": None, "processes": 1, **options}
        return prepare(PrepareRequest(inputs=list(map(str, inputs)), out=str(out), **fields), context)

    return made


def texts(result: PrepareResult) -> list[str]:
    dataset = DatasetFolder.open(result.out)
    tokenizer = load(TokenizerSpec(result.manifest.tokenizer_path))
    return [tokenizer.decode(one.input_ids.tolist()) for one in dataset.records([(0, result.manifest.records)])]


def lines(count: int, word: str = "answer") -> bytes:
    return "".join(json.dumps(chat(f"question {i}", f"{word} {i}")) + "\n" for i in range(count)).encode()


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    # two frames: what `cat a.zst b.zst` and parallel compressors make
    ".zst": lambda data: (
        zstandard.ZstdCompressor().compress(data[: len(data) // 2])
        + zstandard.ZstdCompressor().compress(data[len(data) // 2 :])
    ),
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_read_like_plain_ones(tmp_path: Path, prepared: Prepare, suffix: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(9))
    (tmp_path / f"b.JSONL{suffix}").write_bytes(COMPRESS[suffix](lines(9)))
    (tmp_path / f"c.json{suffix}").write_bytes(
        COMPRESS[suffix](json.dumps([*map(json.loads, lines(9).splitlines())]).encode())
    )
    digests = {prepared(tmp_path / name).manifest.digest for name in ("a.jsonl", f"b.JSONL{suffix}", f"c.json{suffix}")}
    assert len(digests) == 1


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-9], lambda data: b"nothing of the kind", lambda data: data[:20] + b"\xff" * 9 + data[29:]],
)
def test_a_damaged_compressed_file_is_an_error_and_never_fewer_records(
    tmp_path: Path, prepared: Prepare, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    (tmp_path / f"a.jsonl{suffix}").write_bytes(damage(COMPRESS[suffix](lines(200))))
    with pytest.raises(UsageError, match="cannot be decompressed"):
        prepared(tmp_path / f"a.jsonl{suffix}")


def test_a_folder_is_read_recursively_and_unread_files_are_named(tmp_path: Path, prepared: Prepare) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    hub = tmp_path / "hub"
    for folder in ("data", "extra/deep", ".git"):
        (hub / folder).mkdir(parents=True)
    for shard in range(2):
        table = pa.Table.from_pylist([chat(f"shard {shard}", "yes")])
        pyarrow.parquet.write_table(table, hub / "data" / f"train-0000{shard}-of-00002.parquet")
    (hub / "extra/deep/more.jsonl.gz").write_bytes(gzip.compress(lines(1, "deep")))
    for name in ("README.md", ".gitattributes", ".git/config.json", "dataset_infos.json", "data/notes.txt.gz"):
        (hub / name).write_text("{}")
    (hub / "extra/none.jsonl").write_bytes(b"")
    result = prepared(hub)
    assert [Path(one.path).name for one in result.manifest.sources] == [
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
        "more.jsonl.gz",
    ]
    assert [one.records for one in result.manifest.sources] == [1, 1, 1]
    names = [name.removeprefix(f"{hub}/") for name in result.manifest.unread_files]
    assert sorted(names) == sorted(
        [
            ".git/config.json",
            ".gitattributes",
            "README.md",
            "data/notes.txt.gz",
            "dataset_infos.json",
            "extra/none.jsonl (empty)",
        ]
    )


def test_a_saved_dataset_is_read_by_its_own_list(tmp_path: Path, prepared: Prepare) -> None:
    from datasets import Dataset

    saved = Dataset.from_list([chat(f"q {i}", "yes") for i in range(6)])
    saved.save_to_disk(tmp_path / "saved", num_shards=2)
    (tmp_path / "saved" / "cache-1.arrow").write_bytes(next((tmp_path / "saved").glob("*.arrow")).read_bytes())
    result = prepared(tmp_path / "saved")
    assert result.manifest.records == 6
    assert [Path(name).name for name in result.manifest.unread_files] == ["cache-1.arrow"]


def test_a_dataset_of_splits_asks_for_one(tmp_path: Path, prepared: Prepare) -> None:
    from datasets import Dataset, DatasetDict

    one = Dataset.from_list([chat("q", "yes")])
    DatasetDict(train=one, test=one).save_to_disk(tmp_path / "splits")
    with pytest.raises(UsageError, match=r"several splits \(train, test\)") as caught:
        prepared(tmp_path / "splits")
    assert f"--input {tmp_path}/splits/train" in caught.value.remedy
    assert prepared(tmp_path / "splits" / "train").manifest.records == 1


def test_buckets_are_read_like_folders(prepared: Prepare) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe(
        {"/chats/a.jsonl": lines(2), "/chats/b/c.jsonl.gz": gzip.compress(lines(2, "other")), "/chats/x.md": b"."}
    )
    try:
        folder, file = prepared("memory://chats"), prepared("memory://chats/b/c.jsonl.gz")
        with pytest.raises(UsageError, match="no input memory://none"):
            prepared("memory://none")
    finally:
        memory.rm("/chats", recursive=True)
    assert [one.path for one in folder.manifest.sources] == ["memory:///chats/a.jsonl", "memory:///chats/b/c.jsonl.gz"]
    assert (folder.manifest.records, file.manifest.records) == (4, 2)
    assert folder.manifest.unread_files == ["memory:///chats/x.md"]


def test_a_bucket_that_cannot_be_reached_is_a_sentence(prepared: Prepare) -> None:
    with pytest.raises(UsageError, match=r"bucket://a cannot be reached: Protocol not known"):
        prepared("bucket://a")
    with pytest.raises((UsageError, HostError), match=r"http://127\.0\.0\.1:9/a\.jsonl|input http"):
        prepared("http://127.0.0.1:9/a.jsonl")


RECORD = chat("naïve?", "yes — 好")


def test_no_message_and_no_manifest_repeats_the_credentials_of_a_url(tmp_path: Path) -> None:
    url = "memory://me:s3cr3t@bucket/records.jsonl?token=s3cr3t"
    with pytest.raises(UsageError) as missing:
        expand([url])
    with pytest.raises((UsageError, HostError)) as unknown:
        expand(["no-such-scheme://me:s3cr3t@bucket/x"])
    file = InputFile(url, "records.jsonl", "jsonl", "", True, 9)
    assert "s3cr3t" not in f"{missing.value} {unknown.value} {file.shown}"


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + json.dumps(RECORD).encode(),
        json.dumps(RECORD, ensure_ascii=False).encode() + b"\r\n\r\n",
        b"\r\n  \r\n" + json.dumps(RECORD).encode() + b"\r\n",
    ],
)
@pytest.mark.parametrize("array", [False, True])
def test_marks_and_line_ends_of_other_systems_change_nothing(
    tmp_path: Path, prepared: Prepare, content: bytes, array: bool
) -> None:
    if array:
        mark = b"\xef\xbb\xbf" if content.startswith(b"\xef") else b""
        content = mark + b"\r\n[" + content.removeprefix(mark) + b"]\r\n"
    path = tmp_path / ("a.json" if array else "a.jsonl")
    path.write_bytes(content)
    (text,) = texts(prepared(path))
    assert "naïve?" in text
    assert "yes — 好<|im_end|>" in text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_other_encodings_are_named(tmp_path: Path, prepared: Prepare, encoding: str, name: str) -> None:
    (tmp_path / name).write_bytes(json.dumps([RECORD]).encode(encoding))
    with pytest.raises(UsageError, match=f"is {encoding[:6].upper()} text") as caught:
        prepared(tmp_path / name)
    assert "iconv" in caught.value.remedy


GOOD = json.dumps(RECORD)
ODD = {
    "NaN": f'{{"score": NaN, {GOOD[1:]}',
    "Infinity": f'{{"score": [-Infinity], {GOOD[1:]}',
    "a lone surrogate": GOOD.replace("yes", "\\ud83d"),
    "an integer of 70 bits": f'{{"id": {2**70}, {GOOD[1:]}',
    "a negative one": f'{{"id": [-{2**66}], {GOOD[1:]}',
    "300 levels": f'{{"deep": {"[" * 300}{"]" * 300}, {GOOD[1:]}',
    "9,000 levels": f'{{"deep": {"[" * 9000}{"]" * 9000}, {GOOD[1:]}',
    "bytes that are no UTF-8": GOOD.replace("yes", "\udcff"),
    "no JSON": '{"messages": nonsense}',
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("name", ["s.jsonl", "s.json"])
def test_odd_values_are_the_same_record_error_in_lines_and_arrays(
    tmp_path: Path, prepared: Prepare, name: str, odd: str
) -> None:
    text = f"{GOOD}\n{odd}\n" if name == "s.jsonl" else f"[{GOOD},\n{odd}]"
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RecordError, match=rf"Record {name}:2: it "):
        prepared(tmp_path / name)
    manifest = prepared(tmp_path / name, bad="drop").manifest
    assert (manifest.records, [(one.records, one.examples) for one in manifest.drops]) == (1, [(1, [f"{name}:2"])])


@pytest.mark.parametrize(
    "odd",
    [
        {**RECORD, "score": float("nan")},
        {**RECORD, "scores": [1.0, float("inf")]},
        {"messages": json.dumps(RECORD["messages"]).replace("yes", "\\ud83d")},
        {"messages": json.dumps(RECORD["messages"])[:-1] + ', {"role": "user", "content": "x", "n": 1e999}]'},
        {"messages": json.dumps(RECORD["messages"])[:-1] + f', {{"role": "user", "content": "x", "n": {2**80}}}]'},
        {"messages": "[" * 300 + "]" * 300},
    ],
)
def test_odd_values_are_the_same_record_error_in_parquet(tmp_path: Path, prepared: Prepare, odd: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    as_text = isinstance(odd["messages"], str)
    good = {
        **odd,
        "messages": json.dumps(RECORD["messages"]) if as_text else RECORD["messages"],
        "score": 1.0,
        "scores": [1.0],
    }
    pyarrow.parquet.write_table(pa.Table.from_pylist([good, odd]), tmp_path / "s.parquet")
    with pytest.raises(RecordError, match=r"Record s\.parquet:2"):
        prepared(tmp_path / "s.parquet")
    assert prepared(tmp_path / "s.parquet", bad="drop").manifest.records == 1


def test_large_floats_and_integers_of_64_bits_are_no_odd_values(tmp_path: Path, prepared: Prepare) -> None:
    write_jsonl(tmp_path / "s.jsonl", [{**RECORD, "id": 2**64 - 1, "low": -(2**63), "x": 1e30, "y": -2.5e300}])
    assert prepared(tmp_path / "s.jsonl").manifest.records == 1


@pytest.mark.parametrize("block", [7, 64, 1 << 20])
def test_arrays_with_any_content_are_cut_between_elements(
    tmp_path: Path, prepared: Prepare, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("remote.data.divisible._BLOCK", block)
    records = [chat('a "]" b', "],[{}\\"), chat("\\\\", '"'), chat("x" * 200, "\n\t{"), chat('\\"' * 60, '"\\' * 90)]
    (tmp_path / "s.json").write_text(json.dumps(records, indent=3))
    write_jsonl(tmp_path / "s.jsonl", records)
    assert prepared(tmp_path / "s.json").manifest.digest == prepared(tmp_path / "s.jsonl").manifest.digest
    (tmp_path / "cut.json").write_text(json.dumps(records)[:-30])
    with pytest.raises(UsageError, match=r"cut\.json is an incomplete JSON array"):
        prepared(tmp_path / "cut.json")


def test_nulls_that_arrow_filled_in_are_in_no_call_and_no_schema(tmp_path: Path, prepared: Prepare) -> None:
    from datasets import Dataset

    def record(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
        properties = {key: {"type": "string"} for key in arguments}
        tool = {
            "type": "function",
            "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
        }
        return {
            "messages": [
                {"role": "user", "content": "do it", "tool_calls": None},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ],
            "tools": [tool],
        }

    records = [record("find", {"path": "/a", "depth": "2"}), record("ping", {"host": "b"}), record("now", {})]
    Dataset.from_list(records).to_parquet(tmp_path / "calls.parquet")
    write_jsonl(tmp_path / "calls.jsonl", records)
    assert texts(prepared(tmp_path / "calls.parquet")) == texts(prepared(tmp_path / "calls.jsonl"))


def test_nulls_of_json_text_and_of_lines_stay(tmp_path: Path, prepared: Prepare) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"to": None}}}
    record = {
        "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    }
    write_jsonl(tmp_path / "s.jsonl", [record])
    table = pa.Table.from_pylist([{"messages": json.dumps(record["messages"])}])
    pyarrow.parquet.write_table(table, tmp_path / "s.parquet")
    for name in ("s.jsonl", "s.parquet"):
        assert '"arguments": {"to": null}' in texts(prepared(tmp_path / name))[0]


def test_tokenized_records_need_the_model_s_config_and_no_tokenizer(tmp_path: Path, prepared: Prepare) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 50}}))
    tokens = {"input_ids": [1, 49, 2], "loss_mask": [0, 1.0, True]}
    write_jsonl(tmp_path / "t.jsonl", [tokens, {**tokens, "input_ids": [1, 50, 2]}])
    with pytest.raises(RecordError, match=r"t\.jsonl:2: token id 50 is outside the vocabulary of 50"):
        prepared(tmp_path / "t.jsonl", tokenizer=str(model))
    manifest = prepared(tmp_path / "t.jsonl", tokenizer=str(model), bad="drop").manifest
    assert (manifest.records, manifest.vocab_size, manifest.tokenizer, manifest.mask) == (1, 50, "", {"given": 1})
    write_jsonl(tmp_path / "c.jsonl", [RECORD])
    with pytest.raises(UsageError, match="config but no tokenizer"):
        prepared(tmp_path / "c.jsonl", tokenizer=str(model))


def test_tokenized_records_need_no_tokenizer_that_cannot_be_loaded(tmp_path: Path, prepared: Prepare) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": 50}))
    (model / "tokenizer_config.json").write_text("{}")
    write_jsonl(tmp_path / "t.jsonl", [{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}])
    assert prepared(tmp_path / "t.jsonl", tokenizer=str(model)).manifest.records == 1
    write_jsonl(tmp_path / "c.jsonl", [RECORD])
    with pytest.raises(HostError, match="could not be loaded"):
        prepared(tmp_path / "c.jsonl", tokenizer=str(model))
