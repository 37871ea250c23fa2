"""The verb `job`: runs one verb (`prepare`, `verify`, `export`, `compress`) as a job of its own on a cluster.

Runs on the cluster's login host. The job has a folder in the shared workdir, whose name follows from the request: the
same request finds the same job again. The node writes the verb's lines into that folder, and this verb hands them on.
Only the login host opens a run's ledger: the node gets a copy, and what it did is put into the ledger here.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash
from pydantic import Field, ValidationError

from remote.context import Context
from remote.engines.payload import keep_payload
from remote.engines.slurm.engine import SlurmJob
from remote.lock import host_lock
from remote.shared.errors import HostError, UsageError, told
from remote.shared.files import make_directory, read_own, write_whole
from remote.shared.messages.codec import CompressRequest, CompressResult
from remote.shared.messages.dataset import PrepareRequest
from remote.shared.messages.envelope import LINE, Call, Failure, Item, Line, Message, Progress, Result
from remote.shared.messages.export import ExportRequest
from remote.shared.messages.jobs import JobRequest, JobRow, JobTask, JobTold, JobVerb
from remote.shared.messages.verify import VerifyRequest, VerifyResult
from remote.shared.paths import JobPaths
from remote.storage.compress import adopt
from remote.work.gathered import take_in
from remote.work.known import known
from remote.work.ledger import Ledger

REQUESTS: dict[JobVerb, type[PrepareRequest] | type[VerifyRequest] | type[ExportRequest] | type[CompressRequest]] = {
    "prepare": PrepareRequest,
    "verify": VerifyRequest,
    "export": ExportRequest,
    "compress": CompressRequest,
}
READ = ("inputs", "folder", "model", "tokenizer")
"""Fields of requests with paths that the verb reads."""
WRITTEN = "out"
"""The field with the path that the verb makes."""
SCHEDULERS: dict[str, type[SlurmJob]] = {"slurm": SlurmJob}
POLL_SECONDS = 0.5
LOOK_SECONDS = 5.0
"""Between two questions to the scheduler."""
GONE_SECONDS = 20.0
"""A job that left the queue this long ago without an outcome has none: file systems may show a file late."""


class End(Message):
    """How a job ended: `ended.json`, which the login host writes once."""

    at: float
    code: int
    """The verb's exit code."""
    value: dict[str, Any] | None = None
    failure: Failure | None = None


class Kept(Message):
    """What the login host keeps of a submitted job, besides the node's own task."""

    engine: str
    number: str
    """The job's number in the scheduler's queue."""
    verb: JobVerb
    request: dict[str, Any] = Field(default_factory=dict)


def job(request: JobRequest, context: Context) -> JobTold:
    """Submit the job unless it is known, and follow it to its end; raises the verb's own error."""
    asked = _validated(request)
    paths = context.workdir.job(_name(request.verb, asked))
    payload = paths.root / "payload" / context.payload.name
    scheduler = SCHEDULERS[request.order.engine](paths)
    text = scheduler.text(request.order, payload)
    if request.dry_run:
        return JobTold(name=paths.root.name, script=text)
    with host_lock(context, "job", wait=True):
        earlier = paths.number.exists() and (not paths.told.exists() or scheduler.row(_kept(paths).number) is not None)
        if not earlier:
            _submit(paths, request, asked, context, payload)
    kept = _kept(paths)
    end = ended(paths, context)
    answer = JobTold(
        name=paths.root.name,
        script=text,
        job=kept.number,
        earlier=earlier,
        ended_at=end.at if end is not None and earlier else 0.0,
    )
    if not request.follow:
        return answer
    end = _followed(paths, kept, context)
    for line in _lines(paths):
        if isinstance(line, Item):
            context.report.line(line)
    write_whole(paths.told, b"")
    if end.failure is not None:
        raise told(end.failure.kind, end.failure.message, end.failure.remedy, end.failure.details)
    return answer.model_copy(update={"value": end.value})


def rows(context: Context, name: str = "") -> list[JobRow]:
    """Return the jobs whose outcome nobody has seen; or only the named job, seen or not.

    Raises UsageError if there is no job of this name.
    """
    names = [path.name for path in sorted(context.workdir.jobs.glob("*")) if (path / "number").exists()]
    if name and name not in names:
        raise UsageError(f"There is no job {name!r} on this cluster.", remedy=f"Jobs: {', '.join(names) or 'none'}.")
    chosen = [context.workdir.job(one) for one in names if one == name or not name]
    return [_row(paths, context) for paths in chosen if name or not paths.told.exists()]


def cancel(context: Context, name: str, *, dry_run: bool) -> list[str]:
    """End the job of this name and return its name; [] if it has ended already."""
    (row,) = rows(context, name)
    if row.code is not None:
        return []
    if not dry_run:
        paths = context.workdir.job(name)
        kept = _kept(paths)
        SCHEDULERS[kept.engine](paths).cancel(kept.number)
        _remove_mark(paths)
        write_whole(paths.told, b"")
    return [name]


def ended(paths: JobPaths, context: Context) -> End | None:
    """Return how the job ended; None while it waits or runs. Puts what the node did into the run's ledger."""
    with suppress(FileNotFoundError):
        return End.model_validate_json(read_own(paths.ended))
    outcome = next((line for line in _lines(paths) if isinstance(line, Result | Failure)), None)
    if outcome is None:
        return None
    return _keep(paths, _end(outcome, paths, context))


def _validated(request: JobRequest) -> Message:
    try:
        return REQUESTS[request.verb].model_validate(request.request)
    except ValidationError as error:
        raise UsageError(f"The request for {request.verb!r} is wrong: {error.errors()[0]['msg']}.") from error


def _name(verb: str, asked: Message) -> str:
    return f"{verb}-{xxhash.xxh3_64_hexdigest((verb + asked.model_dump_json()).encode())[:8]}"


def _kept(paths: JobPaths) -> Kept:
    return Kept.model_validate_json(read_own(paths.number))


def _submit(paths: JobPaths, request: JobRequest, asked: Message, context: Context, payload: Path) -> None:
    """Make the job's folder anew and submit the job."""
    seen, mark = _places(asked)
    shutil.rmtree(paths.root, ignore_errors=True)
    make_directory(paths.root)
    call = Call(verb=request.verb, request=asked.model_dump(mode="json"), workdir="")
    task = JobTask(call=call, seen=seen)
    if isinstance(asked, VerifyRequest | CompressRequest):
        task = _with_run(task, asked, paths, context)
    if mark is not None:
        write_whole(mark, b"")
        task = task.model_copy(update={"mark": str(mark)})
    try:
        write_whole(paths.task, task.model_dump_json().encode())
        keep_payload(context.payload, payload)
        number = SCHEDULERS[request.order.engine](paths).submit(request.order, payload)
    except BaseException:
        if mark is not None:
            mark.unlink(missing_ok=True)
        raise
    kept = Kept(engine=request.order.engine, number=number, verb=request.verb, request=call.request)
    write_whole(paths.number, kept.model_dump_json().encode())


def _places(asked: Message) -> tuple[list[str], Path | None]:
    """Return the paths that the verb reads, and a new file beside what it makes; raises UsageError for a missing path.

    The node looks for all of them before it begins.
    """
    given = [one for key in READ for one in _texts(getattr(asked, key, ""))]
    seen = []
    for path in [str(Path(one).expanduser()) for one in given if "://" not in one]:
        if Path(path).exists():
            seen.append(path)
        elif Path(path).is_absolute() or path not in _texts(getattr(asked, "tokenizer", "")):
            raise UsageError(
                f"{path} is not there on the cluster's login host.",
                remedy="Inputs and folders are paths on the file system that the cluster's hosts share: copy it there.",
            )  # a tokenizer may be a name that transformers resolves
    out = getattr(asked, WRITTEN, "")
    if not out or "://" in out:
        return seen, None
    parent = Path(out).expanduser().absolute().parent
    while not parent.is_dir():
        parent = parent.parent
    return seen, parent / f".roost-{secrets.token_hex(8)}"


def _texts(value: str | list[str]) -> list[str]:
    return [one for one in ([value] if isinstance(value, str) else value) if one]


def _with_run(task: JobTask, asked: VerifyRequest | CompressRequest, paths: JobPaths, context: Context) -> JobTask:
    """Return the task with the run's folder, and give the node a copy of the run's ledger."""
    identity = asked.identity if isinstance(asked, CompressRequest) else asked.run
    if identity is None:
        return task
    run = known(context.workdir, identity)
    take_in(run)
    with Ledger(run.ledger, to_read=True) as ledger:
        ledger.copy_to(paths.ledger)
    call = task.call if task.call.verb != "compress" else task.call.model_copy(update={"verb": "pack"})
    return task.model_copy(update={"run": str(run.root.resolve()), "call": call})


def _followed(paths: JobPaths, kept: Kept, context: Context) -> End:
    """Hand on the job's progress until it has ended; return how."""
    scheduler, tail = SCHEDULERS[kept.engine](paths), _Tail(paths)
    said, looked, gone_at = "", 0.0, 0.0
    while (end := ended(paths, context) if tail.is_whole else None) is None:
        for line in [line for line in tail.new() if isinstance(line, Progress)][-1:]:
            context.report.line(line)
        if time.monotonic() - looked >= LOOK_SECONDS:
            looked, row = time.monotonic(), scheduler.row(kept.number)
            word = _word(kept.number, row)
            if word != said:
                said = word
                context.report.progress(word)
            gone_at = (gone_at or time.monotonic()) if row is None else 0.0
            if gone_at and time.monotonic() - gone_at > GONE_SECONDS:
                return ended(paths, context) or _keep(paths, _without_outcome(paths, kept, scheduler))
        time.sleep(POLL_SECONDS)
    return end


class _Tail:
    """Reads the lines of the job's newest attempt as they come."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths = paths
        self._file: Path | None = None
        self._offset = 0
        self.is_whole = paths.ended.exists()
        """Whether the verb's result or error was read, or the login host knows the job's end."""

    def new(self) -> Iterator[Line]:
        """Yield the lines that are whole now and were not yielded before."""
        newest = self._paths.newest_lines()
        if newest != self._file:
            self._file, self._offset = newest, 0
        if newest is None:
            return
        for line, end in _read(newest, self._offset):
            self._offset = end
            self.is_whole |= isinstance(line, Result | Failure)
            yield line


def _word(number: str, row: JobRow | None) -> str:
    if row is None:
        return f"job {number} has left the queue"
    if row.state == "PENDING":
        return f"job {number} waits in the queue" + (f" ({row.reason})" if row.reason else "")
    return f"job {number} is {row.state.lower()}" + (f" on {row.node}" if row.node else "")


def _without_outcome(paths: JobPaths, kept: Kept, scheduler: SlurmJob) -> End:
    """Return the end of a job that left the queue without a result, with the scheduler's cause."""
    cause = scheduler.cause(kept.number)
    said = f"; the scheduler says {cause}" if cause else ""
    lines: list[str] = []
    with suppress(OSError):
        lines = read_own(paths.log).decode(errors="replace").splitlines()[-5:]
    failure = Failure(
        kind=HostError.kind,
        message=f"The job {kept.number} ({paths.root.name}) ended without a result{said}.",
        remedy=f"`inv logs --cluster NAME --job {paths.root.name}` shows its log. The same command submits it again.",
        details={"lines": lines},
    )
    return End(at=time.time(), code=1, failure=failure)


def _end(outcome: Result | Failure, paths: JobPaths, context: Context) -> End:
    """Return the end that the verb told; of a compressed run, once the ledger says so too."""
    if isinstance(outcome, Failure):
        code = 2 if isinstance(told(outcome.kind, ""), UsageError) else 1
        return End(at=time.time(), code=code, failure=outcome)
    kept, value, code = _kept(paths), outcome.value, 0
    if kept.verb == "compress":
        identity = CompressRequest.model_validate(kept.request).identity
        packed = adopt(known(context.workdir, identity), CompressResult.model_validate(value))
        value, code = packed.model_dump(mode="json"), int(bool(packed.failed))
    elif kept.verb == "verify":
        checked = VerifyResult.model_validate(value)
        code = int(not checked.complete if kept.request["folder"] else checked.faults > 0)
    return End(at=time.time(), code=code, value=value)


def _keep(paths: JobPaths, end: End) -> End:
    """Put down how the job ended, and remove what it needs no more."""
    _remove_mark(paths)
    write_whole(paths.ended, end.model_dump_json().encode())
    paths.ledger.unlink(missing_ok=True)
    return end


def _remove_mark(paths: JobPaths) -> None:
    """Remove the file beside the verb's output by which the node could tell that it sees that folder."""
    with suppress(OSError, ValidationError):
        mark = JobTask.model_validate_json(read_own(paths.task)).mark
        if mark:
            Path(mark).unlink(missing_ok=True)


def _row(paths: JobPaths, context: Context) -> JobRow:
    """Return the job as the scheduler, or its end, tells it."""
    kept, name = _kept(paths), paths.root.name
    end = ended(paths, context)
    if end is None:
        scheduler = SCHEDULERS[kept.engine](paths)
        row = scheduler.row(kept.number)
        if row is not None:
            newest = [line.text for line in _lines(paths) if isinstance(line, Progress)][-1:]
            return row.model_copy(update={"reason": row.reason or "".join(newest)})
        end = ended(paths, context) or _without_outcome(paths, kept, scheduler)
    said = end.failure.message if end.failure is not None else ""
    return JobRow(job=name, state="DONE" if end.code == 0 else "FAILED", reason=said, code=end.code)


def _lines(paths: JobPaths) -> Iterator[Line]:
    """Yield the whole lines of the job's newest attempt."""
    newest = paths.newest_lines()
    if newest is not None:
        yield from (line for line, _ in _read(newest, 0))


def _read(path: Path, offset: int) -> Iterator[tuple[Line, int]]:
    """Yield each whole line from the offset on, with the offset of the next line."""
    with path.open("rb") as stream:
        stream.seek(offset)
        for raw in stream:
            if not raw.endswith(b"\n"):
                return
            offset += len(raw)
            yield LINE.validate_json(raw), offset
