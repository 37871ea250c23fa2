"""The verb `unpack`: containers to plain shards, on all cores, each verified by the digest of its plain bytes.

Runs on the laptop or a host. Writes the plain shards, whole; deletes containers only where asked to.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import xxhash

from remote.context import Context
from remote.shared.codec.container import SUFFIX, read_index, unpack_file
from remote.shared.codec.piece import DamagedError
from remote.shared.errors import RecordError, UsageError
from remote.shared.files import make_directory
from remote.shared.messages.codec import UnpackRequest, UnpackResult
from remote.shared.supervised.processes import process_pool
from remote.shared.supervised.threads import as_finished

_FEWER = "Run again with fewer --processes; shards that are unpacked are kept."


@dataclass(frozen=True)
class _Done:
    packed_bytes: int
    plain_bytes: int
    was_present: bool


def unpack(request: UnpackRequest, context: Context) -> UnpackResult:
    """Unpack every container of the request; a damaged one is reported and costs only itself."""
    containers = _containers(request.paths)
    out = make_directory(Path(request.out).expanduser()) if request.out else None
    result = UnpackResult(unpacked=0, packed_bytes=0, plain_bytes=0)
    workers = min(request.processes or os.cpu_count() or 1, len(containers))
    with process_pool(workers, remedy=_FEWER) as pool:
        jobs = {pool.submit(_unpack_one, path, _target(path, out), request.remove): path for path in containers}
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
        raise UsageError(f"There is no *{SUFFIX} file in {', '.join(paths) or 'no path at all'}.")
    return found


def _target(container: Path, out: Path | None) -> Path:
    return (out or container.parent) / container.name.removesuffix(SUFFIX)


def _unpack_one(container: Path, target: Path, remove: bool) -> _Done:
    packed_bytes = container.stat().st_size
    present = _is_right(container, target)
    if not present:
        unpack_file(container, target)
    if remove:
        container.unlink()
    return _Done(packed_bytes, target.stat().st_size, present)


def _is_right(container: Path, target: Path) -> bool:
    """Whether the plain shard is there and has the digest that the container names."""
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
