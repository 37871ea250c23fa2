"""Reads, adopts and revokes a host's share of a run on its disk, `runs/<run>/assignments/<epoch>/`.

Runs on the host, called by the extractor and the verbs that start and fence it. Only the highest epoch counts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from remote.shared import ranges as sets
from remote.shared.errors import HostError, UsageError
from remote.shared.files import ASIDE, DIRECTORY_MODE, fsync_directory, make_directory, write_whole
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.extract import Assignment
from remote.shared.messages.replica import ReplicaSpec
from remote.shared.paths import ASSIGNMENT_FILE, TOKENS_FILE, RunPaths, Workdir
from remote.work.epochs import newest, newest_epoch, read_description
from remote.work.known import known


@dataclass(frozen=True)
class Work:
    """An assignment with its token ids. A *position* is a record's place in it, an *index* a record's global number."""

    assignment: Assignment
    index: NDArray[np.int64]
    offset: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    expected: NDArray[np.int32] | None = None
    """For prompts: the number of tokens that each record is expected to have in the end."""

    def __len__(self) -> int:
        return len(self.index)

    def tokens(self, position: int) -> NDArray[np.int32]:
        """Return the token ids, int32 [L], of the record at `position`."""
        return self.token_ids[self.offset[position] : self.offset[position + 1]]

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of every record, int64 [N]."""
        return np.diff(self.offset)

    def strange_tokens(self) -> Iterator[tuple[int, str]]:
        """Yield the positions of records with ids outside the vocabulary, each with the reason."""
        vocabulary = self.assignment.vocab_size
        strange = np.flatnonzero((self.token_ids < 0) | (self.token_ids >= vocabulary))
        owners = np.searchsorted(self.offset, strange, side="right") - 1
        for position, first in zip(*np.unique(owners, return_index=True), strict=True):
            yield (
                int(position),
                f"Token id {self.token_ids[strange[first]]} is outside the vocabulary of {vocabulary}.",
            )


def share_of(paths: RunPaths, spec: ReplicaSpec) -> Work:
    """Return the records of a cluster's round: those of `spec.records`, or all of the run's newest assignment."""
    work = load(newest(paths))
    return _only(work, spec.records) if spec.records else work


def _only(work: Work, records: Ranges) -> Work:
    places = np.flatnonzero(np.isin(work.index, list(sets.indices(records))))
    tokens = [work.tokens(place) for place in places.tolist()]
    offset = np.concatenate([[0], np.cumsum([len(ids) for ids in tokens], dtype=np.int64)])
    expected = None if work.expected is None else work.expected[places]
    ids = np.concatenate(tokens) if tokens else work.token_ids[:0]
    return Work(work.assignment, work.index[places], offset, ids, expected)


def load(directory: Path) -> Work:
    """Read an assignment folder; raises UsageError if the folder has no assignment, or an inconsistent one."""
    work = read_work(directory, read_description(directory))
    assignment = work.assignment
    if (assignment.records, assignment.tokens) != (len(work), len(work.token_ids)):
        raise HostError(
            f"{directory} should have {assignment.records} records with {assignment.tokens} tokens, but has "
            f"{len(work)} with {len(work.token_ids)}.",
            remedy="Push the assignment again.",
        )
    return work


def read_work(directory: Path, assignment: Assignment) -> Work:
    """Read the records in a folder; raises UsageError if they cannot be read or contradict each other."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(directory / TOKENS_FILE)
        work = Work(assignment, arrays["index"], arrays["offset"], arrays["token_ids"], arrays.get("expected"))
    except (OSError, SafetensorError, KeyError) as error:
        raise UsageError(f"{directory / TOKENS_FILE} could not be read: {error}.") from error
    _check(work, directory)
    return work


def write_records(
    directory: Path, indices: NDArray[np.int64], lengths: list[int], token_ids: NDArray[np.int32]
) -> None:
    """Write the file of tokens into a folder that still has a temporary name."""
    from safetensors.numpy import save

    offset = np.cumsum([0, *lengths], dtype=np.int64)
    write_whole(directory / TOKENS_FILE, save({"index": indices, "offset": offset, "token_ids": token_ids}))


def adopt(directory: Path, workdir: Workdir) -> RunPaths:
    """Copy an assignment folder atomically into the run's own folder; return the run's paths.

    Raises UsageError if the run already has another assignment of that epoch, or a newer epoch.
    """
    assignment = read_description(directory)
    paths = workdir.run(assignment.run)
    if paths.root.is_dir():
        known(workdir, assignment.identity)
    target = paths.assignment(assignment.epoch)
    if target.resolve() == directory.resolve():
        return paths
    present = newest_epoch(paths)
    if present is not None and present > assignment.epoch:
        raise UsageError(
            f"{directory} has epoch {assignment.epoch}, but the run {assignment.run!r} is at epoch {present} on this "
            f"host."
        )
    if target.exists():
        if read_description(target) != assignment:
            raise UsageError(
                f"The run {assignment.run!r} has another assignment of epoch {assignment.epoch} on this host.",
                remedy="A changed assignment needs a higher epoch.",
            )
        return paths
    with placed(target) as aside:
        shutil.copytree(directory, aside)
    return paths


def fence(paths: RunPaths, epoch: int) -> None:
    """Add an empty assignment of `epoch`, which replaces this host's earlier shares."""
    before = read_description(newest(paths))
    if before.epoch >= epoch:
        return
    empty = before.model_copy(update={"epoch": epoch, "ranges": [], "records": 0, "tokens": 0, "plan": ""})
    with placed(paths.assignment(epoch)) as aside:
        aside.mkdir(mode=DIRECTORY_MODE)
        write_records(aside, np.zeros(0, np.int64), [], np.zeros(0, np.int32))
        (aside / ASSIGNMENT_FILE).write_text(empty.model_dump_json(indent=1))


@contextmanager
def placed(target: Path) -> Iterator[Path]:
    """Yield a temporary folder name to create; after the block, the folder appears whole as `target`."""
    aside = make_directory(target.parent) / f"{ASIDE}{target.name}"
    shutil.rmtree(aside, ignore_errors=True)
    yield aside
    aside.rename(target)
    fsync_directory(target.parent)


def _check(work: Work, directory: Path) -> None:
    records = len(work.index)
    sound = (
        len(work.offset) == records + 1
        and (records == 0 or (work.offset[0] == 0 and bool((np.diff(work.offset) >= 0).all())))
        and len(work.token_ids) == (work.offset[-1] if len(work.offset) else 0)
        and len(np.unique(work.index)) == records
    )
    if not sound:
        raise UsageError(f"{directory / TOKENS_FILE} is not consistent: offsets, ids and indices do not fit together.")
