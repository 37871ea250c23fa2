"""The verb `unpack`: turns containers into plain shards, on all cores, each verified by its digest.

Runs on the laptop or a host. Deletes containers only on request. Before the first byte is written, every container's
own metadata is compared with the runs of its folder and of the target folder.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from remote.context import Context
from remote.shared.codec.container import SUFFIX, read_index, unpack_file
from remote.shared.codec.piece import DamagedError
from remote.shared.errors import OtherRunError, RecordError, UsageError
from remote.shared.files import make_directory
from remote.shared.messages.codec import UnpackRequest, UnpackResult
from remote.shared.messages.run import RunIdentity
from remote.shared.paths import RunPaths
from remote.shared.shard.tensorfile import read_metadata
from remote.shared.supervised.pools import as_finished
from remote.shared.supervised.processes import process_pool
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.manifest import manifest_of
from remote.work.known import identity_of

_APART = "Unpack each run into a folder of its own (--out), and check it with inv verify."
_FEWER = "Run again with fewer --processes; unpacked shards are kept."


@dataclass(frozen=True)
class _Done:
    packed_bytes: int
    plain_bytes: int
    was_present: bool


def unpack(request: UnpackRequest, context: Context) -> UnpackResult:
    """Unpack every container of the request; a damaged container is reported, and the others are unpacked.

    Raises OtherRunError, before anything is changed, if containers of one run would come among shards of another.
    """
    containers = _containers(request.paths)
    out = Path(request.out).expanduser() if request.out else None
    targets = {path: _target(path, out) for path in containers}
    result = UnpackResult(unpacked=0, packed_bytes=0, plain_bytes=0)
    workers = min(request.processes or os.cpu_count() or 1, len(containers))
    with process_pool(workers, remedy=_FEWER) as pool:
        _refuse_other_runs(pool, targets)
        if out is not None:
            make_directory(out)
        jobs = {pool.submit(_unpack_one, path, target, request.remove): path for path, target in targets.items()}
        for number, job in enumerate(as_finished(jobs), 1):
            try:
                done = job.result()
            except (RecordError, OSError) as error:
                result.failed[str(jobs[job])] = str(error)
            else:
                result.present += done.was_present
                result.unpacked += not done.was_present
                result.packed_bytes += done.packed_bytes
                result.plain_bytes += done.plain_bytes
            context.report.progress("unpacking", number, len(containers), "shards")
    return result


def _containers(paths: list[str]) -> list[Path]:
    found: list[Path] = []
    for text in paths:
        path = Path(text).expanduser()
        if path.is_dir():
            found += sorted(path.rglob(f"*{SUFFIX}"))
        elif path.name.endswith(SUFFIX):
            found.append(path)
        else:
            raise UsageError(f"{path} is neither a folder nor a *{SUFFIX} file.")
    if not found:
        where = f"in {', '.join(paths)}" if paths else "to unpack, because no path was given"
        raise UsageError(f"There is no *{SUFFIX} file {where}.")
    return found


def _target(container: Path, out: Path | None) -> Path:
    return (out or container.parent) / container.name.removesuffix(SUFFIX)


def _refuse_other_runs(pool: ProcessPoolExecutor, targets: dict[Path, Path]) -> None:
    """Raise OtherRunError if a container belongs to another run than its folder, its target folder or a shard there.

    Shards with unreadable metadata are skipped here: unpacking reports or replaces them.
    """
    folders = {path.parent for pair in targets.items() for path in pair}
    identities = {folder: found for folder in folders if (found := _identity_of(folder)) is not None}
    first: dict[Path, tuple[Path, str]] = {}
    files = [*targets, *(target for target in targets.values() if target.exists())]
    for path, metadata in zip(files, pool.map(_metadata, files), strict=True):
        if metadata is None:
            continue
        target = targets.get(path, path)
        for folder in (path.parent, target.parent):
            if folder in identities and (mismatch := identities[folder].mismatch(metadata)):
                raise OtherRunError(f"{path} does not belong in {folder}. {mismatch}", remedy=_APART)
        run = f"{metadata.get('run')!r} with the digest {metadata.get('run_digest')}"
        other, others = first.setdefault(target.parent, (path, run))
        if run != others:
            raise OtherRunError(f"{path} is of the run {run}, but {other} is of {others}.", remedy=_APART)


def _metadata(shard: Path) -> dict[str, str] | None:
    """Return the metadata of a compressed or plain shard; None if it is damaged."""
    with suppress(RecordError):
        return read_metadata(shard)
    return None


def _identity_of(folder: Path) -> RunIdentity | None:
    """Return the run of a destination's folder, or of a run's own folder on its host; None for any other folder.

    Raises UsageError if it is such a folder but does not say which run it belongs to.
    """
    folder = folder.absolute()
    if folder.name == "hidden_states":
        manifest = manifest_of(Destination(folder.parent))
        return manifest.identity if manifest is not None else None
    run = RunPaths(folder.parent)
    return identity_of(run) if folder == run.shards and run.ledger.exists() else None


def _unpack_one(container: Path, target: Path, remove: bool) -> _Done:
    packed_bytes = container.stat().st_size
    present = _is_right(container, target)
    if not present:
        unpack_file(container, target)
    if remove:
        container.unlink()
    return _Done(packed_bytes, target.stat().st_size, present)


def _is_right(container: Path, target: Path) -> bool:
    """Return whether the plain shard is there and has the digest in the container."""
    if not target.exists():
        return False
    try:
        with container.open("rb") as stream:
            index = read_index(stream)
    except DamagedError as error:
        raise RecordError(f"{container} cannot be unpacked: {error}.") from error
    digest = xxhash.xxh3_128()
    with target.open("rb", buffering=0) as plain:
        while block := plain.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == index.xxh3
