"""The verb `prepare`: makes a dataset with global indices from files of conversations.

Runs on `local` or on a host. Writes `out`, and until the end the spool `.NAME.preparing` beside it. After an
interruption, the same request continues from the spool. Three passes: scan the sources (digests, chunks); on all cores,
tokenize the chunks into the spool; on all cores, write the Arrow files in order.
"""

from __future__ import annotations

import datetime
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import xxhash

from remote.context import Context
from remote.data import arrange, dataset
from remote.data.account import count_copies, count_records, drop_table, histogram, why_empty
from remote.data.answered import identity_at
from remote.data.carried import PRELOAD, load_carried
from remote.data.chunk import Recipe, SpooledChunk, Tally, spool_chunk
from remote.data.inputs import InputFile, expand
from remote.data.records import Reading
from remote.data.sources import Chunk, scan
from remote.data.template import asks_for_the_date, template_digest
from remote.data.tokenizer import ModelTokenizer, TokenizerSpec, embedding_rows, has_tokenizer
from remote.data.workers import cores, in_order
from remote.shared.errors import HostError, RecordError, UsageError
from remote.shared.files import fsync_directory, make_directory, write_whole
from remote.shared.messages.dataset import Manifest, PrepareRequest, PrepareResult, Source
from remote.shared.supervised.pools import Pool

_WORTH_A_PROOF = 8 << 20
"""Bytes of sources from which the proof pays: the `tokenizers` library takes about as long to encode them."""
MARKER = ".prepared"
"""The file with the digest of everything that decides a dataset, in the dataset's folder or in the work folder."""
_CARRIED = "tokenizer.json"
"""The file in the spool from which workers load the tokenizer without transformers."""
_PRELOAD_TRANSFORMERS = "transformers.models.auto.tokenization_auto"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def prepare(request: PrepareRequest, context: Context) -> PrepareResult:
    """Make the dataset that `request` describes, or return the dataset that an earlier call made."""
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
    tokenizer: ModelTokenizer | None = field(init=False)
    told: TokenizerSpec = field(init=False)
    """The spec from which worker processes load the tokenizer."""

    @property
    def work(self) -> Path:
        return self.out.with_name(f".{self.out.name}.preparing")

    @property
    def spool(self) -> Path:
        return self.work / "spool"

    def run(self) -> tuple[Manifest, np.ndarray, bool]:
        request, report = self.request, self.context.report
        found = expand(request.inputs)
        make_directory(self.spool)
        report.progress("reading the sources")
        with Pool(1, "load", settles=True) as background:
            loading = background.submit(self._load, found.files)
            scanned = self._scan(found.files)
            self.tokenizer, self.told = loading.result()
        self._refuse_other_tokenizer(found.files)
        sources = [source for source, _ in scanned]
        chunks = [chunk for _, parts in scanned for chunk in parts]
        identity = self._identity(sources)
        if self.out.exists():
            return *self._found_again(identity), True
        self._keep_what_fits(identity, self._spool_identity(sources), keep=[Path(part.path) for part in chunks])
        spooled = self._tokenize(chunks)
        manifest, records = self._arrange(chunks, spooled, sources, found.unread)
        self._write(records, manifest)
        return manifest, records.length, False

    def _refuse_other_tokenizer(self, files: list[InputFile]) -> None:
        """Raise UsageError if answers were sampled with another tokenizer: their ids would be another text."""
        for file in files:
            identity = identity_at(Path(file.path)) if file.form == "answers" else None
            if identity is not None and self.tokenizer is not None and self.tokenizer.digest != identity.tokenizer:
                raise UsageError(
                    f"The answers in {file.path} were sampled with another tokenizer than {self.tokenizer.path} has.",
                    remedy="Name the folder of the model that answered with --tokenizer.",
                )

    def _scan(self, files: list[InputFile]) -> list[tuple[Source, list[Chunk]]]:
        """Digest and cut all sources in threads, because decompression and digests release Python's lock."""
        with Pool(min(cores(), max(1, len(files))), "read", settles=True) as pool:
            return list(pool.map(lambda number: scan(number, files[number], self.spool), range(len(files))))

    def _load(self, files: list[InputFile]) -> tuple[ModelTokenizer | None, TokenizerSpec]:
        """Return the tokenizer, or None if there is only the model's config, and the spec for workers.

        The config suffices for tokenized records. A tokenizer that cannot be loaded becomes an error only at the first
        conversation, in its worker.
        """
        spec = TokenizerSpec(self.request.tokenizer, self.request.trust_remote_code)
        if not has_tokenizer(spec.path):
            return None, spec
        try:
            return load_carried(spec, self.spool / _CARRIED, proved=_is_much(files))
        except HostError:
            if embedding_rows(spec.path) is None:
                raise
            return None, spec

    @cached_property
    def vocab_size(self) -> int:
        if self.tokenizer is not None:
            return self.tokenizer.vocab_size
        rows = embedding_rows(self.request.tokenizer)
        if rows is None:
            raise HostError(
                f"The config.json in {self.request.tokenizer} does not say vocab_size, and there is no tokenizer.",
                remedy="Name a folder with the model's tokenizer.",
            )
        return rows

    @cached_property
    def recipe(self) -> Recipe:
        request = self.request
        return Recipe(
            tokenizer=self.told,
            template_options=tuple(sorted(request.template_options.items())),
            date=self.date,
            max_len=request.max_len,
            truncate=request.too_long == "truncate",
            min_len=request.min_len,
            vocab_size=self.vocab_size,
            reading=Reading(request.chosen, tuple(sorted(request.keys.items())), frozenset(request.ignore)),
        )

    @cached_property
    def date(self) -> str:
        """The date for the template; "" if the template does not use the date."""
        if self.tokenizer is None or not asks_for_the_date(self.tokenizer):
            return ""
        return self.request.date or datetime.datetime.now(datetime.timezone.utc).date().isoformat()

    def _identity(self, sources: list[Source]) -> str:
        """Return the digest of everything that decides the dataset. Another digest means another dataset."""
        return self._decided(sources) + f"-{self.request.seed}-{self.request.bad}"

    def _spool_identity(self, sources: list[Source]) -> str:
        """Return the digest of everything that decides the tokens, and of this boot: the spool is not fsynced."""
        boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
        return self._decided(sources) + boot

    def _decided(self, sources: list[Source]) -> str:
        recipe, tokenizer = self.recipe, self.tokenizer
        decided = (recipe.template_options, recipe.date, recipe.max_len, recipe.truncate, recipe.min_len)
        reading = (recipe.reading.chosen, recipe.reading.keys, sorted(recipe.reading.ignored))
        model = [tokenizer.digest, str(tokenizer.words.chat_template)] if tokenizer is not None else []
        parts = [repr(decided), repr(reading), str(recipe.vocab_size), *model, *(source.xxh3 for source in sources)]
        return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())

    def _found_again(self, identity: str) -> tuple[Manifest, np.ndarray]:
        if not _says(self.out / MARKER, identity):
            raise UsageError(
                f"{self.out} exists, but was not made from these sources with these options.",
                remedy="Choose another --out, or remove this folder.",
            )
        found = dataset.DatasetFolder.open(self.out)
        return found.manifest, found.lengths

    def _keep_what_fits(self, identity: str, spool_identity: str, keep: list[Path]) -> None:
        """Remove an earlier run's spool, or only its Arrow files, if they were made for another request."""
        whole, spooled = self.work / MARKER, self.spool / MARKER
        if _says(spooled, spool_identity):
            self.context.report.progress("continuing where an earlier run stopped")
        else:
            for item in self.spool.iterdir():
                if item not in keep and item.name != _CARRIED:
                    item.unlink()
            write_whole(spooled, spool_identity.encode())
        if not _says(whole, identity):
            for item in self.work.glob("*.arrow"):
                item.unlink()
            write_whole(whole, identity.encode())

    def _tokenize(self, chunks: list[Chunk]) -> list[SpooledChunk]:
        """Spool every chunk; raise RecordError at the first record that cannot be used."""
        tasks = [(chunk, arrange.spool_name(self.spool, number)) for number, chunk in enumerate(chunks)]
        done = 0
        total = sum(chunk.size_bytes for chunk in chunks)
        spooled: list[SpooledChunk] = []
        self.context.report.progress("tokenizing", done, total, "B")
        for number, _ in enumerate(self._spread(partial(spool_chunk, self.recipe), tasks)):
            spooled.append(arrange.read_spool(self.spool, number))
            self._refuse_bad(spooled[-1])
            done += chunks[number].size_bytes
            self.context.report.progress("tokenizing", done, total, "B")
        return spooled

    def _spread(self, function: Callable, tasks: list) -> Iterator:  # type: ignore[type-arg]
        processes = min(self.request.processes or cores(), len(tasks))
        heavy = self.tokenizer is not None and not self.recipe.tokenizer.carried
        preload = [*PRELOAD, _PRELOAD_TRANSFORMERS] if heavy else PRELOAD
        return in_order(function, tasks, processes=processes, preload=preload)

    def _refuse_bad(self, chunk: SpooledChunk) -> None:
        if chunk.tally.bad and self.request.bad == "error":
            raise RecordError(
                f"Record {chunk.tally.bad[0]}.",
                remedy=chunk.tally.remedy or "Correct the record, or drop and count such records with --bad drop.",
                details={"records": list(chunk.tally.bad)},
            )

    def _arrange(
        self, chunks: list[Chunk], spooled: list[SpooledChunk], sources: list[Source], unread: list[str]
    ) -> tuple[Manifest, arrange.Catalogue]:
        everything = arrange.catalogue(chunks, spooled)
        tally = Tally()
        for chunk in spooled:
            tally.add(chunk.tally)
        sources = count_records(sources, chunks, spooled)
        kept = arrange.first_of_each(everything)
        count_copies(tally, everything, kept, sources)
        records = everything.take(kept)
        records = records.take(arrange.shuffled(records, self.request.seed))
        if not len(records.length):
            raise UsageError("No record is left: the dataset would be empty.", remedy=why_empty(tally))
        return self._manifest(records, tally, sources, unread), records

    def _manifest(self, records: arrange.Catalogue, tally: Tally, sources: list[Source], unread: list[str]) -> Manifest:
        request, tokenizer = self.request, self.tokenizer
        return Manifest(
            digest=records.content_digest(),
            records=len(records.length),
            tokens=int(records.length.sum(dtype=np.int64)),
            loss_tokens=int(records.loss.sum(dtype=np.int64)),
            max_tokens=int(records.length.max()),
            sources=sources,
            drops=drop_table(tally),
            unread_files=unread,
            unread_keys=dict(sorted(tally.unread.items())),
            truncated=int(records.truncated.sum()),
            tokenizer=tokenizer.digest if tokenizer is not None else "",
            tokenizer_path=tokenizer.path if tokenizer is not None else request.tokenizer,
            template=template_digest(tokenizer) if tokenizer is not None else "",
            template_options=request.template_options,
            date=self.date,
            mask=records.methods(),
            seed=request.seed,
            max_len=request.max_len,
            vocab_size=self.vocab_size,
        )

    def _write(self, records: arrange.Catalogue, manifest: Manifest) -> None:
        done = 0
        tasks = list(arrange.shard_tasks(records, self.work, self.spool))
        for count in self._spread(arrange.write_shard, tasks):
            done += count
            self.context.report.progress("writing", done, manifest.records, "records")
        dataset.finish(self.work, len(tasks), records.length, records.origin, manifest)
        self._remove_spool()
        (self.work / "lock").unlink()
        self.work.replace(self.out)
        fsync_directory(self.out.parent)

    def _remove_spool(self) -> None:
        """Remove the spool in threads, because a core needs 0.4 s to free a gigabyte of files."""
        with Pool(cores(), "remove", settles=True) as pool:
            list(pool.map(Path.unlink, self.spool.iterdir()))
        self.spool.rmdir()


def _is_much(files: list[InputFile]) -> bool:
    """Return whether there is so much text that faster encoding is worth the time of its proof."""
    return sum(file.size_bytes for file in files) >= _WORTH_A_PROOF


def _says(marker: Path, identity: str) -> bool:
    return marker.is_file() and marker.read_text() == identity


@contextmanager
def _alone(work: Path, out: Path) -> Iterator[None]:
    """Hold the lock of the work folder, because two preparations of one dataset would use the same spool."""
    make_directory(work)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HostError(f"Another process is preparing {out}.") from error
        try:
            yield
        finally:
            if work.exists() and (out.exists() or not (work / MARKER).exists()):
                shutil.rmtree(work, ignore_errors=True)  # after a Ctrl-C a thread may still write
