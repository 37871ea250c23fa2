"""Prompts as they are read, rendered and refused; and answers as `prepare`, `inspect` and `verify` take them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remote.answer.quality import marks_of, repeats
from remote.context import Context
from remote.data.dataset import DatasetFolder
from remote.data.inspect import inspect
from remote.data.prepare import prepare
from remote.data.prompts import prompts
from remote.data.tokenizer import TokenizerSpec, load
from remote.report import Report
from remote.shared.errors import RecordError, UsageError
from remote.shared.messages.answers import PromptsRequest
from remote.shared.messages.dataset import InspectRequest, PrepareRequest
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.transfer import DeliveredRow
from remote.shared.paths import Workdir
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.manifest import opened_for
from remote.work.ledger import Ledger
from tests.remote.answer.conftest import AnsweringHost, identity_of
from tests.remote.data.samples import chat

pytestmark = pytest.mark.timeout(180)


def test_prompts_are_read_in_every_form_and_rendered_up_to_the_answer(answering: AnsweringHost, tmp_path: Path) -> None:
    text = tmp_path / "plain.txt"
    text.write_text("From a text file?\n\nAnother one?\r\n")
    made = answering.prompts([{"prompt": "One?"}, chat("Two?"), chat("Three?", "old", "Four?")])
    request = PromptsRequest(inputs=[str(text)], out=str(tmp_path / "p"), tokenizer=str(answering.model), processes=1)
    plain = prompts(request, Context(Workdir(tmp_path), Report(io.StringIO())))
    assert (made.manifest.records, made.turns, plain.manifest.records) == (3, 4, 2)
    tokenizer = load(TokenizerSpec(str(answering.model)))
    texts = [tokenizer.decode(DatasetFolder(Path(made.out)).record(index).input_ids.tolist()) for index in range(3)]
    assert texts == [
        f"<|im_start|>user\n{asked}?<|im_end|><|im_start|>assistant\n" for asked in ("One", "Two", "Three")
    ]
    shown = tokenizer.decode(DatasetFolder(Path(plain.out)).record(1).input_ids.tolist())
    assert "Another one?<|im_end|>" in shown


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"prompt": "  "}, "empty"),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, "nothing in it asks for an answer"),
        ({"input_ids": [1, 2], "loss_mask": [0, 1]}, "which the model's own template renders"),
        ({"prompt": "x" * 5000}, "longer than 4,073 tokens, which leaves no room for an answer"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_named_or_dropped(
    answering: AnsweringHost, record: dict[str, Any], says: str
) -> None:
    with pytest.raises(RecordError, match=r"Prompt in-0\.jsonl:2: .*" + says):
        answering.prompts([{"prompt": "Good?"}, record], max_len=4073)
    made = answering.prompts([{"prompt": "Good?"}, record], max_len=4073, bad="drop")
    assert (made.manifest.records, made.manifest.drops[0].records) == (1, 1)


def test_a_model_without_a_chat_template_is_refused(answering: AnsweringHost, make_tokenizer: Any) -> None:
    answering.model = make_tokenizer("")
    with pytest.raises(UsageError, match="has no chat template"):
        answering.prompts([{"prompt": "One?"}])


@pytest.mark.processes
def test_prepare_uses_answers_unchanged_and_counts_dropped_records(answering: AnsweringHost) -> None:
    answering.serve()
    made = answering.assign(
        [{"prompt": f"Question {number}?"} for number in range(12)], max_tokens=9, too_long="drop", seed=3
    )
    answering.answer()
    summaries = answering.summaries()
    dropped = sum(summary.dropped == "length" for summary in summaries)
    assert 0 < dropped < 12
    identity = identity_of(made, max_tokens=9, too_long="drop", seed=3)
    folder = _delivered(answering, identity, Path(made.out))
    context = Context(Workdir(answering.folder), Report(io.StringIO()))
    out = answering.folder / "dataset"
    request = PrepareRequest(inputs=[str(folder)], out=str(out), tokenizer=str(answering.model), processes=1, seed=None)
    result = prepare(request, context)
    assert result.manifest.records == 12 - dropped
    assert [(drop.reason, drop.records) for drop in result.manifest.drops] == [
        ("an answer that was cut at the limit of tokens", dropped)
    ]
    kept = [index for index in range(12) if answering.answered(index).account.summary.dropped is None]
    for place, index in enumerate(kept):
        ((ids, mask),) = answering.answered(index).rows
        record = DatasetFolder(out).record(place)
        assert record.input_ids.tolist() == ids.tolist()
        assert record.loss_mask.tolist() == mask.tolist()
    said = io.StringIO()
    inspect(InspectRequest(dataset=str(folder), indices=[0]), Context(Workdir(answering.folder), Report(said)))
    assert '"note":"1 turn: ' in said.getvalue()


def _delivered(answering: AnsweringHost, identity: Any, dataset: Path) -> Path:
    """What a pull leaves behind."""
    folder = answering.folder / "pulled"
    with opened_for(Destination(folder, folder=identity.folder), identity, 12) as destination:
        for source in dataset.iterdir():
            if source.is_file():
                destination.put(source.name, source)
        with Ledger(answering.host.paths.ledger) as ledger:
            rows: list[ShardRow] = [row for _, row in ledger.shards()]
        for row in rows:
            destination.final(row.index).write_bytes(answering.host.paths.shard(row.index).read_bytes())
            destination.ledger.record([_row(row)])
    return folder


def _row(row: ShardRow) -> DeliveredRow:
    values = {**row.model_dump(), "host": "here", "disk_bytes": row.size_bytes, "durable": True, "delivered_at": 1.0}
    return DeliveredRow(**{name: values[name] for name in DeliveredRow.model_fields if name in values})


def test_loops_empty_answers_and_refusals_are_marked() -> None:
    def ids(*values: int) -> np.ndarray:
        return np.array(values, np.int32)

    assert repeats(ids(*range(50), *[7, 8, 9] * 30))
    assert not repeats(ids(*range(300)))
    assert not repeats(ids(*[5] * 20))
    assert marks_of(ids(1), " \n", "stop") == ["empty"]
    assert marks_of(ids(1, 2), "<think>a</think>\n", "length") == ["length", "empty"]
    assert marks_of(ids(1, 2), "I'm sorry, but I can't help with that.", "stop") == ["refused"]
    assert marks_of(ids(1, 2), "Sorry, that was wrong: it is 4.", "stop") == []
