"""Assignment folders hold exactly the dataset's tokens of their ranges, as the extractor reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from remote.context import Context
from remote.data.assign import assign
from remote.data.dataset import DatasetFolder
from remote.data.prepare import prepare
from remote.shared.errors import UsageError
from remote.shared.messages.dataset import AssignRequest, HostShare, PrepareRequest, Ranges
from remote.shared.messages.extract import Assignment
from remote.work.assignment import load
from tests.identities import run_identity
from tests.remote.data.samples import MakeTokenizer, chat, write_jsonl


@pytest.fixture
def dataset(
    tmp_path: Path, make_tokenizer: MakeTokenizer, context: Context, monkeypatch: pytest.MonkeyPatch
) -> DatasetFolder:
    """Of several Arrow files and batches, so that ranges cross their edges."""
    monkeypatch.setattr("remote.data.arrange.SHARD_TOKENS", 500)
    monkeypatch.setattr("remote.data.arrange._BATCH_TOKENS", 150)
    source = write_jsonl(tmp_path / "s.jsonl", [chat(f"q{i}", "a" * (i + 1)) for i in range(30)])
    request = PrepareRequest(inputs=[str(source)], out=str(tmp_path / "data"), tokenizer=str(make_tokenizer()))
    return DatasetFolder.open(prepare(request, context).out)


def share(dataset: DatasetFolder, folder: Path, ranges: Ranges, digest: str = "") -> HostShare:
    assignment = Assignment(
        identity=run_identity(dataset=digest or dataset.manifest.digest),
        host="a",
        epoch=3,
        ranges=[],
        records=0,
        tokens=0,
        vocab_size=0,
        context_length=4096,
    )
    return HostShare(assignment=assignment, ranges=ranges, folder=str(folder))


def test_extractor_reads_back_the_datasets_tokens(dataset: DatasetFolder, tmp_path: Path, context: Context) -> None:
    ranges: Ranges = [(0, 3), (7, 8), (10, 30)]
    result = assign(
        AssignRequest(dataset=str(dataset.root), shares=[share(dataset, tmp_path / "given", ranges)]), context
    )
    work = load(tmp_path / "given")
    assert work.assignment == result.assignments[0]
    assert work.index.tolist() == [0, 1, 2, 7, *range(10, 30)]
    for position, index in enumerate(work.index.tolist()):
        assert work.tokens(position).tolist() == dataset.record(index).input_ids.tolist()
    assert result.size_bytes == [(tmp_path / "given" / "tokens.safetensors").stat().st_size]
    assert work.assignment.vocab_size == dataset.manifest.vocab_size


def test_shares_that_do_not_fit_the_dataset_are_refused(
    dataset: DatasetFolder, tmp_path: Path, context: Context
) -> None:
    for ranges, digest, words in (
        ([(0, 31)], "", "record 30, but the dataset ends at 29"),
        ([], "", "no records"),
        ([(0, 3)], "other", "Make a new plan"),
    ):
        request = AssignRequest(dataset=str(dataset.root), shares=[share(dataset, tmp_path / "x", ranges, digest)])
        with pytest.raises(UsageError, match=words):
            assign(request, context)
    for wrong in ([(3, 3)], [(5, 9), (7, 10)], [(-1, 2)]):
        with pytest.raises(ValidationError):
            share(dataset, tmp_path / "x", wrong)
