"""A host in a folder that answers: prompts made by the verb, an assignment written by the verb, a stand-in server."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from remote.context import Context
from remote.data.answered import Answered, read
from remote.data.assign import assign
from remote.data.prompts import prompts
from remote.report import Report
from remote.shared.messages.answers import AnswerSummary, PromptsRequest, PromptsResult
from remote.shared.messages.dataset import AssignRequest, HostShare
from remote.shared.messages.extract import Assignment
from remote.shared.messages.run import Answering, RunIdentity
from remote.shared.paths import Workdir
from remote.shared.shard.tensorfile import TensorFile
from remote.work.ledger import Ledger
from tests.identities import run_identity
from tests.remote.data.conftest import make_tokenizer
from tests.remote.data.samples import SPECIALS, MakeTokenizer, write_jsonl
from tests.remote.extract.conftest import RUN, Host, host, pool, running
from tests.remote.extract.standin_process import StandInProcess

__all__ = ["host", "make_tokenizer", "pool", "running"]

END = 256 + SPECIALS.index("<|im_end|>")


@dataclass
class AnsweringHost:
    """A host with a model's folder and what it is to answer."""

    host: Host
    model: Path
    folder: Path

    def serve(self, **config: Any) -> StandInProcess:
        """Start a server in `serve` mode."""
        return self.host.serve(end=END, model=str(self.model), **config)

    def prompts(self, records: list[Any], **fields: Any) -> PromptsResult:
        """Make the prompts of these records."""
        source = write_jsonl(self.folder / f"in-{len(list(self.folder.iterdir()))}.jsonl", records)
        out = self.folder / f"prompts-{len(list(self.folder.iterdir()))}"
        request = PromptsRequest(inputs=[str(source)], out=str(out), tokenizer=str(self.model), processes=1, **fields)
        return prompts(request, Context(Workdir(self.folder), Report(io.StringIO())))

    def assign(
        self, records: list[Any], *, turns: str = "all", context: int = 4096, assignment: Any = None, **settings: Any
    ) -> PromptsResult:
        """Give the host all of these prompts; `settings` are of `Answering`."""
        made = self.prompts(records, turns=turns)
        share = HostShare(
            assignment=Assignment(
                identity=identity_of(made, turns=turns, **settings),
                host="here",
                epoch=1,
                ranges=[],
                records=0,
                tokens=0,
                vocab_size=0,
                context_length=context,
                min_free_bytes=0,
                request_timeout_seconds=30.0,
                **(assignment or {}),
            ),
            ranges=[(0, made.manifest.records)],
            folder=str(self.host.paths.assignment(1)),
        )
        assign(AssignRequest(dataset=made.out, shares=[share]), Context(Workdir(self.folder), Report(io.StringIO())))
        return made

    def answer(self) -> Any:
        """Answer in this process to the end."""
        return self.host.extract()

    def answered(self, index: int) -> Answered:
        """A record as it was written."""
        return read(TensorFile.open(self.host.paths.shard(index)))

    def summaries(self) -> list[AnswerSummary]:
        """What the ledger tells of the answers."""
        with Ledger(self.host.paths.ledger) as ledger:
            return [AnswerSummary.model_validate_json(text) for text in ledger.told()]


def identity_of(made: PromptsResult, **settings: Any) -> RunIdentity:
    """The identity of a run over these prompts."""
    answering = Answering(**{"temperature": 0.0, "max_tokens": 40, "template": made.manifest.template, **settings})
    return run_identity(
        name=RUN,
        dataset=made.manifest.digest,
        tokenizer=made.manifest.tokenizer,
        boundaries=(),
        hidden_size=0,
        answers=answering,
    )


@pytest.fixture
def answering(host: Host, make_tokenizer: MakeTokenizer, tmp_path: Path) -> AnsweringHost:
    """A host whose model's template keeps every turn as it was said."""
    folder = tmp_path / "data"
    folder.mkdir()
    return AnsweringHost(host, make_tokenizer(), folder)
