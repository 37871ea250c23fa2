"""Verb `prepare`: any pile of conversations to a dataset with global indices.

Runs on `local` or on a host. Writes `out`, and beside it, until the end, `.NAME.preparing`: the spool, from which
an interrupted run goes on where it stopped if it is asked for the same again. Three passes: scan the sources
(digests, chunks); on all cores, tokenize the chunks into the spool; on all cores, write the Arrow files in order.
"""

from __future__ import annotations

import datetime
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from remote.context import Context
from remote.data import arrange, dataset
from remote.data.account import count_copies, drop_table, histogram, why_empty
from remote.data.chunk import Recipe, SpooledChunk, Tally, spool_chunk
from remote.data.sources import Chunk, expand, scan
from remote.data.template import ChatTemplate, asks_for_the_date
from remote.data.tokenizer import ModelTokenizer, TokenizerSpec, load
from remote.data.workers import cores, in_order
from remote.shared.errors import HostError, RecordError, UsageError
from remote.shared.files import fsync_directory, make_directory, write_whole
from remote.shared.messages.dataset import Manifest, PrepareRequest, PrepareResult, Source

MARKER = ".prepared"
"""Says what a dataset, or the work towards one, was made from."""
_PRELOAD = ["remote.data.chunk", "remote.data.arrange", "transformers.models.auto.tokenization_auto"]


def prepare(request: PrepareRequest, context: Context) -> PrepareResult:
    """Make the dataset that `request` describes; find it again where it was made before."""
    begun = time.monotonic()
    out = Path(request.out).expanduser().absolute()
    job = _Job(request, context, out)
    make_directory(out.parent)
    with _alone(job.work, out):
        manifest, lengths, reused = job.run()
    return PrepareResult(
        out=str(out),
        manifest=manifest,
        histogram=histogram(lengths),
        reused=reused,
        wall_seconds=time.monotonic() - begun,
    )


@dataclass
class _Job:
    request: PrepareRequest
    context: Context
    out: Path

    @property
    def work(self) -> Path:
        return self.out.with_name(f".{self.out.name}.preparing")

    @property
    def spool(self) -> Path:
        return self.work / "spool"

    def run(self) -> tuple[Manifest, np.ndarray, bool]:
        request, report = self.request, self.context.report
        files = expand(request.inputs)
        tokenizer = load(TokenizerSpec(request.tokenizer, request.trust_remote_code))
        make_directory(self.spool)
        report.progress("reading the sources")
        scanned = [scan(number, path, self.spool) for number, path in enumerate(files)]
        sources = [source for source, _ in scanned]
        chunks = [chunk for _, parts in scanned for chunk in parts]
        recipe = self._recipe(tokenizer)
        identity = self._identity(sources, tokenizer)
        if self.out.exists():
            return *self._found_again(identity), True
        self._keep_what_fits(
            identity, self._spool_identity(sources, tokenizer), keep=[Path(part.path) for part in chunks]
        )
        spooled = self._tokenize(chunks, recipe)
        manifest, records = self._arrange(chunks, spooled, sources, tokenizer)
        self._write(records, manifest)
        return manifest, records.length, False

    def _recipe(self, tokenizer: ModelTokenizer) -> Recipe:
        request = self.request
        return Recipe(
            tokenizer=TokenizerSpec(request.tokenizer, request.trust_remote_code),
            template_options=tuple(sorted(request.template_options.items())),
            date=self.date(tokenizer),
            max_len=request.max_len,
            truncate=request.too_long == "truncate",
            min_len=request.min_len,
            vocab_size=tokenizer.vocab_size(),
        )

    def date(self, tokenizer: ModelTokenizer) -> str:
        """The day that the template is told; "" where it does not ask."""
        if not asks_for_the_date(tokenizer):
            return ""
        return self.request.date or datetime.datetime.now(datetime.timezone.utc).date().isoformat()

    def _identity(self, sources: list[Source], tokenizer: ModelTokenizer) -> str:
        """Digest of all that decides the dataset; a folder made of something else is never taken for it."""
        request = self.request
        return self._spool_identity(sources, tokenizer) + f"-{request.seed}-{request.bad}"

    def _spool_identity(self, sources: list[Source], tokenizer: ModelTokenizer) -> str:
        """Digest of what decides the records' tokens."""
        recipe = self._recipe(tokenizer)
        decided = (recipe.template_options, recipe.date, recipe.max_len, recipe.truncate, recipe.min_len)
        parts = [repr(decided), str(recipe.vocab_size), tokenizer.digest(), str(tokenizer.hf.chat_template)]
        return xxhash.xxh3_128_hexdigest("\n".join([*parts, *(source.xxh3 for source in sources)]).encode())

    def _found_again(self, identity: str) -> tuple[Manifest, np.ndarray]:
        if not _says(self.out / MARKER, identity):
            raise UsageError(
                f"{self.out} exists and was not made from these sources with these options.",
                remedy="Choose another --out, or remove it.",
            )
        found = dataset.DatasetFolder.open(self.out)
        return found.manifest, found.lengths

    def _keep_what_fits(self, identity: str, spool_identity: str, keep: list[Path]) -> None:
        """Throw away an earlier run's spool, or only its Arrow files, where they were made for something else."""
        whole, spooled = self.work / MARKER, self.spool / MARKER
        if _says(spooled, spool_identity):
            self.context.report.progress("going on where an earlier run stopped")
        else:
            for item in self.spool.iterdir():
                if item not in keep:
                    item.unlink()
            write_whole(spooled, spool_identity.encode())
        if not _says(whole, identity):
            for item in self.work.glob("*.arrow"):
                item.unlink()
            write_whole(whole, identity.encode())

    def _tokenize(self, chunks: list[Chunk], recipe: Recipe) -> list[SpooledChunk]:
        """Spool every chunk; raise RecordError at the first one with a record that cannot be used."""
        tasks = [(chunk, arrange.spool_name(self.spool, number)) for number, chunk in enumerate(chunks)]
        done = 0
        total = sum(chunk.size_bytes for chunk in chunks)
        spooled: list[SpooledChunk] = []
        for number, _ in enumerate(self._spread(partial(spool_chunk, recipe), tasks)):
            spooled.append(arrange.read_spool(self.spool, number))
            self._refuse_bad(spooled[-1])
            done += chunks[number].size_bytes
            self.context.report.progress("tokenizing", done, total, "B")
        return spooled

    def _spread(self, function: Callable, tasks: list) -> Iterator:  # type: ignore[type-arg]
        processes = min(self.request.processes or cores(), len(tasks))
        return in_order(function, tasks, processes=processes, preload=_PRELOAD)

    def _refuse_bad(self, chunk: SpooledChunk) -> None:
        if chunk.tally.bad and self.request.bad == "error":
            raise RecordError(
                f"Record {chunk.tally.bad[0]}.",
                remedy="Mend it, or let such records be dropped and counted with --bad drop.",
                details={"records": list(chunk.tally.bad)},
            )

    def _arrange(
        self, chunks: list[Chunk], spooled: list[SpooledChunk], sources: list[Source], tokenizer: ModelTokenizer
    ) -> tuple[Manifest, arrange.Catalogue]:
        everything = arrange.catalogue(chunks, spooled)
        tally = Tally()
        for chunk in spooled:
            tally.add(chunk.tally)
        kept = arrange.first_of_each(everything)
        count_copies(tally, everything, kept, sources)
        records = everything.take(kept)
        records = records.take(arrange.shuffled(records, self.request.seed))
        if not len(records.length):
            raise UsageError("No record is left: the dataset would be empty.", remedy=why_empty(tally))
        return self._manifest(records, tally, sources, tokenizer), records

    def _manifest(
        self, records: arrange.Catalogue, tally: Tally, sources: list[Source], tokenizer: ModelTokenizer
    ) -> Manifest:
        request = self.request
        template = ChatTemplate(tokenizer).digest if tokenizer.hf.chat_template else ""
        return Manifest(
            digest=records.content_digest(),
            records=len(records.length),
            tokens=int(records.length.sum(dtype=np.int64)),
            loss_tokens=int(records.loss.sum(dtype=np.int64)),
            max_tokens=int(records.length.max()),
            sources=sources,
            drops=drop_table(tally),
            truncated=int(records.truncated.sum()),
            tokenizer=tokenizer.digest(),
            tokenizer_path=tokenizer.path,
            template=template,
            template_options=request.template_options,
            date=self.date(tokenizer),
            mask=records.methods(),
            seed=request.seed,
            max_len=request.max_len,
            vocab_size=tokenizer.vocab_size(),
        )

    def _write(self, records: arrange.Catalogue, manifest: Manifest) -> None:
        done = 0
        tasks = list(arrange.shard_tasks(records, self.work, self.spool))
        for count in self._spread(arrange.write_shard, tasks):
            done += count
            self.context.report.progress("writing", done, manifest.records, "records")
        dataset.finish(self.work, len(tasks), records.length, records.origin, manifest)
        shutil.rmtree(self.spool)
        (self.work / "lock").unlink()
        self.work.replace(self.out)
        fsync_directory(self.out.parent)


def _says(marker: Path, identity: str) -> bool:
    return marker.is_file() and marker.read_text() == identity


@contextmanager
def _alone(work: Path, out: Path) -> Iterator[None]:
    """Hold the work folder's lock: two preparations of one dataset would spoil each other's spool."""
    make_directory(work)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HostError(f"Another preparation of {out} is under way.") from error
        try:
            yield
        finally:
            if work.exists() and (out.exists() or not (work / MARKER).exists()):
                shutil.rmtree(work)
