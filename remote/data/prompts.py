"""The verb `prompts`: renders prompts with the model's template, as a dataset that is planned over hosts.

Runs on `local` or on a host. Writes `out` atomically, in the order of the sources. A row has the ids of the prompt
before the model's first answer, and the rest of the conversation after that answer.
"""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from remote.context import Context
from remote.data import dataset
from remote.data.account import drop_table, why_empty
from remote.data.asking import script_of
from remote.data.carried import load_carried, open_tokenizer
from remote.data.chunk import Tally
from remote.data.encoding import Spans
from remote.data.fitting import fit
from remote.data.inputs import PROMPT_FORMS, expand
from remote.data.records import Conversation, Reading, normalize
from remote.data.sources import Chunk, read, scan
from remote.data.template import ChatTemplate, asks_for_the_date, template_digest
from remote.data.tokenizer import ModelTokenizer, TokenizerSpec
from remote.data.workers import cores, in_order
from remote.shared.errors import RecordError, UsageError
from remote.shared.files import ASIDE, fsync_directory, make_directory, write_whole
from remote.shared.messages.answers import PromptsRequest, PromptsResult
from remote.shared.messages.dataset import Manifest, Source
from remote.shared.messages.run import Turns

MARKER = ".prompts"
"""The file with the digest of everything that decides a dataset of prompts."""
_PRELOAD = ["remote.data.prompts", "tokenizers"]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a prompt's tokens. All chunks have the same recipe."""

    tokenizer: TokenizerSpec
    template_options: tuple[tuple[str, Any], ...]
    date: str
    turns: Turns
    max_len: int | None
    expected: int
    reading: Reading


@dataclass(frozen=True)
class Prompt:
    """One row."""

    number: int
    """The number of the record in its source."""
    ids: np.ndarray
    script: str
    turns: int
    expected: int


@dataclass
class Made:
    """The prompts that a worker made from a chunk."""

    prompts: list[Prompt] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


def prompts(request: PromptsRequest, context: Context) -> PromptsResult:
    """Make the prompts that `request` describes, or return the prompts that an earlier call made."""
    out = Path(request.out).expanduser().absolute()
    make_directory(out.parent)
    work = out.with_name(f"{ASIDE}{os.getpid()}-{out.name}")
    shutil.rmtree(work, ignore_errors=True)
    make_directory(work / "spool")
    try:
        return _made(request, context, out, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _made(request: PromptsRequest, context: Context, out: Path, work: Path) -> PromptsResult:
    found = expand(request.inputs, PROMPT_FORMS)
    context.report.progress("reading the sources")
    scanned = [scan(number, file, work / "spool") for number, file in enumerate(found.files)]
    spec = TokenizerSpec(request.tokenizer, request.trust_remote_code)
    tokenizer, told = load_carried(spec, work / "spool" / "tokenizer.json", proved=False)
    ChatTemplate(tokenizer)  # raises UsageError if there is none
    recipe = _recipe(request, tokenizer, told)
    identity = _identity(recipe, request.samples, tokenizer, [source for source, _ in scanned])
    if out.exists():
        return _found_again(out, identity)
    chunks = [chunk for _, parts in scanned for chunk in parts]
    rows = _Rows(work, request.samples)
    for done, made in enumerate(_spread(recipe, chunks, request.processes)):
        _refuse_bad(made.tally, request)
        rows.add(chunks[done].source, made)
        context.report.progress("rendering prompts", done + 1, len(chunks), "chunks")
    if not rows.lengths:
        raise UsageError("No prompt is left.", remedy=why_empty(rows.tally))
    sources = [source.model_copy(update={"records": rows.by_source.get(n, 0)}) for n, (source, _) in enumerate(scanned)]
    rows.finish(_manifest(request, recipe, tokenizer, rows, sources, found.unread))
    write_whole(work / MARKER, identity.encode())
    shutil.rmtree(work / "spool")
    work.rename(out)
    fsync_directory(out.parent)
    return _result(out, reused=False)


def _recipe(request: PromptsRequest, tokenizer: ModelTokenizer, told: TokenizerSpec) -> Recipe:
    day = request.date or datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return Recipe(
        tokenizer=told,
        template_options=tuple(sorted(request.template_options.items())),
        date=day if asks_for_the_date(tokenizer) else "",
        turns=request.turns,
        max_len=request.max_len,
        expected=request.expected,
        reading=Reading(keys=tuple(sorted(request.keys.items())), ignored=frozenset(request.ignore), prompts=True),
    )


def _identity(recipe: Recipe, samples: int, tokenizer: ModelTokenizer, sources: list[Source]) -> str:
    """Return the digest of everything that decides the prompts."""
    decided = (recipe.template_options, recipe.turns, recipe.max_len, recipe.expected, samples)
    reading = (recipe.reading.keys, sorted(recipe.reading.ignored))
    model = (tokenizer.digest, template_digest(tokenizer))
    parts = [repr(decided), repr(reading), repr(model), *(source.xxh3 for source in sources)]
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


def _found_again(out: Path, identity: str) -> PromptsResult:
    marker = out / MARKER
    if not marker.is_file() or marker.read_text() != identity:
        raise UsageError(
            f"{out} exists, but its prompts were made from other sources or options.",
            remedy="Choose another name for the changed run with --run.",
        )
    return _result(out, reused=True)


def _result(out: Path, *, reused: bool) -> PromptsResult:
    found = dataset.DatasetFolder.open(out)
    return PromptsResult(
        out=str(out),
        manifest=found.manifest,
        turns=found.manifest.turns,
        expected_tokens=int(found.expected.sum(dtype=np.int64)),
        reused=reused,
    )


def _spread(recipe: Recipe, chunks: list[Chunk], processes: int | None) -> Iterator[Made]:
    count = min(processes or cores(), len(chunks))
    yield from in_order(partial(render_chunk, recipe), chunks, processes=count, preload=_PRELOAD)


def _refuse_bad(tally: Tally, request: PromptsRequest) -> None:
    if tally.bad and request.bad == "error":
        raise RecordError(
            f"Prompt {tally.bad[0]}.",
            remedy=tally.remedy or "Correct the record, or drop and count such prompts with --bad drop.",
            details={"records": list(tally.bad)},
        )


def render_chunk(recipe: Recipe, chunk: Chunk) -> Made:
    """Render one chunk. This is the task of worker processes."""
    return _worker(recipe).render(chunk)


@lru_cache(maxsize=1)
def _worker(recipe: Recipe) -> PromptWorker:
    return PromptWorker(recipe)


class PromptWorker:
    """Renders chunks. Loads the tokenizer once in a process."""

    def __init__(self, recipe: Recipe) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.recipe = recipe
        self.tokenizer = open_tokenizer(recipe.tokenizer)
        self.template = ChatTemplate(self.tokenizer, dict(recipe.template_options), recipe.date)

    def render(self, chunk: Chunk) -> Made:
        """Return the prompts of a chunk, and the tally with the records that cannot be used."""
        made = Made()
        for number, raw in read(chunk):
            try:
                if isinstance(raw, RecordError):
                    raise raw
                made.prompts.append(self._prompt(number, raw))
            except RecordError as error:
                name = f"{chunk.name}:{number}"
                made.tally.drop(error.message, name)
                if not made.tally.bad:
                    made.tally.remedy = error.remedy
                    made.tally.bad.append(f"{name}: {error.message}")
        return made

    def _prompt(self, number: int, raw: Any) -> Prompt:
        conversation = normalize(raw, self.recipe.reading)
        assert isinstance(conversation, Conversation)
        script = script_of(conversation, self.recipe.turns)
        opening, _ = fit(self.template, Conversation(script.opening(), script.tools))
        text = self.template.render(opening.messages, opening.tools, prompt=True)
        nowhere: list[Spans] = [[]]
        ((ids, _),) = self.tokenizer.encode([text], nowhere)
        longest = self.recipe.max_len
        if longest is not None and len(ids) > longest:
            raise RecordError(
                f"its prompt is longer than {longest:,} tokens, which leaves no room for an answer in the context",
                remedy="Shorten the prompt, raise `context_length`, or drop and count such prompts with --bad drop.",
            )
        return Prompt(number, ids, script.to_json(), len(script.asks), len(ids) + script.expected(self.recipe.expected))


class _Rows:
    """Writes the rows of all chunks as they come, and keeps only a few numbers a row in memory."""

    def __init__(self, root: Path, samples: int) -> None:
        self._root, self._samples = root, samples
        self._sink = pa.OSFile(str(root / dataset.shard_filename(0, 1)), "wb")
        self._writer = pa.ipc.new_stream(self._sink, dataset.PROMPT_SCHEMA)
        self._digest = xxhash.xxh3_128()
        self.lengths: list[int] = []
        self.expected: list[int] = []
        self.origins: list[tuple[int, int]] = []
        self.by_source: dict[int, int] = {}
        self.turns = 0
        self.tally = Tally()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def add(self, source: int, made: Made) -> None:
        """Write a chunk's prompts, each as often as it is to be answered."""
        self.tally.add(made.tally)
        self.by_source[source] = self.by_source.get(source, 0) + len(made.prompts) + sum(made.tally.dropped.values())
        rows = [prompt for prompt in made.prompts for _ in range(self._samples)]
        for prompt in rows:
            self._digest.update(prompt.ids.tobytes() + prompt.script.encode() + b"\0")
            self.lengths.append(len(prompt.ids))
            self.expected.append(prompt.expected)
            self.origins.append((source, prompt.number))
            self.turns += prompt.turns
        if rows:
            ids = [prompt.ids.astype(np.int32, copy=False) for prompt in rows]
            self._writer.write_batch(dataset.prompt_batch(ids, [prompt.script for prompt in rows]))

    def finish(self, manifest: Manifest) -> None:
        """Write all other files beside the rows."""
        self._writer.close()
        self._sink.close()
        dataset.write_expected(self._root, np.array(self.expected, np.int32))
        lengths, origins = np.array(self.lengths, np.int32), np.array(self.origins, np.int64)
        dataset.finish(self._root, 1, lengths, origins, manifest)


def _manifest(
    request: PromptsRequest,
    recipe: Recipe,
    tokenizer: ModelTokenizer,
    rows: _Rows,
    sources: list[Source],
    unread: list[str],
) -> Manifest:
    return Manifest(
        digest=rows.digest,
        records=len(rows.lengths),
        tokens=sum(rows.lengths),
        loss_tokens=0,
        max_tokens=max(rows.lengths),
        sources=sources,
        drops=drop_table(rows.tally),
        unread_files=unread,
        tokenizer=tokenizer.digest,
        tokenizer_path=tokenizer.path,
        template=template_digest(tokenizer),
        template_options=request.template_options,
        date=recipe.date,
        mask={},
        seed=None,
        max_len=request.max_len,
        vocab_size=tokenizer.vocab_size,
        kind="prompts",
        turns=rows.turns,
    )
