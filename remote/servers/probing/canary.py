"""The canary: a prompt whose capture must be right before a server counts as ready; and the verb `canary`.

The supervisor sends the prompt (`capture_canary`) and waits for the dump and for the file of the canary's own hook. The
verb compares the two in a process of its own, so that the supervisor never imports torch. Deletes only those files.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from remote.context import Context
from remote.shared.errors import HostError
from remote.shared.files import read_own
from remote.shared.messages.envelope import LINE, Call, Failure, Result
from remote.shared.messages.server import CanaryRequest, CanaryResult, CaptureState
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import register, withdraw

TOKENS = [*range(2, 26), *range(25, 1, -1)]
"""Small ids, so that every vocabulary has them; rising and falling, so that a row's neighbours differ."""
DUMP_SECONDS = 60.0
COMPARE_SECONDS = 300.0
"""Importing torch from a cold network file system takes minutes."""
POLL_SECONDS = 0.1

_STAGE = re.compile(r"\.stage\d+of(\d+)\.safetensors")


@dataclass(frozen=True)
class Files:
    """The files of one canary: a dump and a file of the hook for every pipeline stage that has slots."""

    dumps: list[Path]
    hooks: list[Path]


async def capture_canary(send: Callable[[list[int], str], Awaitable[object]], capture: CaptureState) -> str:
    """Send the canary, check its capture and return a sentence on how exact it is; raises HostError if it is wrong."""
    rid = RequestId(secrets.token_hex(8), None, 0, len(TOKENS))
    folder = Path(capture.dump_dir)
    try:
        register(folder, rid.nonce)
        await send(TOKENS, str(rid))
        files = await _written(rid, folder)
        check_rows(files.dumps, rows=rid.rows, slots=len(capture.boundaries))
        return await _compared(files)
    finally:
        for left in folder.glob(f"{rid}.*"):
            left.unlink(missing_ok=True)
        withdraw(folder, rid.nonce)


def canary(request: CanaryRequest, context: Context) -> CanaryResult:
    """The verb `canary`: compare a canary's dump with its hook's file; raises HostError naming a wrong slot."""
    from remote.parity.canary import check_canary

    hooks = [Path(hook) for hook in request.hooks]
    checks = [check_canary(Path(dump), hooks) for dump in request.dumps]
    for check in checks:
        check.require()
    slots = [slot for check in checks for slot in check.slots]
    return CanaryResult(largest_error=max(slot.error for slot in slots), slots=len(slots))


def check_rows(dumps: list[Path], *, rows: int, slots: int) -> None:
    """Check the shapes in the dumps' headers; raises HostError with the expected and the found shape."""
    shapes = [_shape(dump) for dump in dumps]
    found = sum(shape[1] for shape in shapes)
    if any(shape[0] != rows for shape in shapes) or found != slots:
        raise HostError(
            f"The canary's capture has {shapes[0][0]} rows and {found} slots where {rows} and {slots} were expected.",
            remedy="Rows from a cache or a graph are missing: see the refusals in `inv serve --dry-run`.",
        )


def _shape(dump: Path) -> list[int]:
    try:
        with safe_open(dump, framework="np") as file:
            return list(file.get_slice("hidden_states").get_shape())
    except (SafetensorError, OSError) as error:
        raise HostError(f"The canary's dump {dump.name} cannot be read: {error}.") from error


async def _written(rid: RequestId, folder: Path) -> Files:
    """Wait for all files of the canary; raises HostError if capture refuses the canary or writes nothing in time."""
    deadline = asyncio.get_running_loop().time() + DUMP_SECONDS
    while True:
        for error in folder.glob(f"{rid}.*error.json"):
            cause = json.loads(read_own(error)).get("cause", "no cause given")
            raise HostError(f"Capture refused the canary: {cause}.")
        dumps = _complete(sorted(folder.glob(f"{rid}.safetensors")) or sorted(folder.glob(f"{rid}.stage*.safetensors")))
        if dumps:
            return Files(dumps, sorted(folder.glob(f"{rid}.canary*.safetensors")))
        if asyncio.get_running_loop().time() > deadline:
            raise HostError(
                f"The server generates, but wrote no capture of the canary to {folder} within {DUMP_SECONDS:.0f} s.",
                remedy="Capture is not active in this server: see `inv attached`, and the server's log for the reason.",
            )
        await asyncio.sleep(POLL_SECONDS)


def _complete(dumps: list[Path]) -> list[Path]:
    """Return all parts of the record, or none if the part of a pipeline stage is still missing."""
    stage = _STAGE.search(dumps[0].name) if dumps else None
    return dumps if stage is None or len(dumps) == int(stage.group(1)) else []


async def _compared(files: Files) -> str:
    """Compare the files in a process of its own; raises HostError if they differ."""
    if not files.hooks:
        raise HostError(
            "The canary was captured, but its own hook wrote nothing to compare it with.",
            remedy="See the server's log, where the hook says why it is not active.",
        )
    request = CanaryRequest(dumps=[str(dump) for dump in files.dumps], hooks=[str(hook) for hook in files.hooks])
    call = Call(verb="canary", workdir="~", request=request.model_dump())
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "remote",
        "canary",
        cwd=Path(__file__).resolve().parents[3],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        answer, _ = await asyncio.wait_for(
            process.communicate(call.model_dump_json().encode() + b"\n"), COMPARE_SECONDS
        )
    except BaseException:
        process.kill()
        await process.wait()
        raise
    result = _answer(answer)
    return f"the canary's {result.slots} slots equal their boundaries within {result.largest_error:.1e}"


def _answer(output: bytes) -> CanaryResult:
    try:
        line = LINE.validate_json(output.strip().rpartition(b"\n")[2])
    except ValidationError as error:
        raise HostError("The comparison of the canary ended without an answer; see the supervisor's log.") from error
    if isinstance(line, Failure):
        raise HostError(line.message, remedy=line.remedy)
    assert isinstance(line, Result)
    return CanaryResult.model_validate(line.value)
