"""Really ready: a generation came back, and in extract mode the capture of one has the right rows.

Runs inside the supervisor. Talks to the server on 127.0.0.1 and reads one dump; deletes that dump and nothing else.
`/health` proves little: it can answer 200 while every generation hangs.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any

import aiohttp
from safetensors import SafetensorError, safe_open

from remote.capture.request_id import RequestId
from remote.errors import HostError
from remote.messages.server import CaptureState

PROBE_TOKENS = [11, 7, 5, 3, 2, 13, 17, 19]
"""Small ids, so that every vocabulary has them."""
CANARY_TOKENS = [*range(2, 26), *range(25, 1, -1)]
GENERATION_SECONDS = 120.0
"""The first generation may compile kernels; one that takes longer is tried again until the server's own deadline."""
DUMP_SECONDS = 60.0
RETRY_SECONDS = 0.5


class Readiness:
    """Awaits one server; `seen` is a sentence on how far it has come, for the deadline's error."""

    def __init__(self, port: int, capture: CaptureState | None) -> None:
        self._port = port
        self._url = f"http://127.0.0.1:{port}"
        self._capture = capture
        self._silent = self.seen = f"port {port} does not answer yet"

    async def wait(self) -> None:
        """Return once the server is ready. Raises HostError where its capture is wrong; never ends otherwise."""
        timeout = aiohttp.ClientTimeout(total=GENERATION_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not (await self._connects() and await self._generates(session)):
                await asyncio.sleep(RETRY_SECONDS)
            if self._capture is not None:
                await self._captures(session, self._capture)

    async def _connects(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        if self.seen == self._silent:
            self.seen = "it accepts connections, but no generation has come back yet"
        return True

    async def _generates(self, session: aiohttp.ClientSession) -> bool:
        try:
            answer = await self._generate(session, PROBE_TOKENS, None)
        except asyncio.TimeoutError:
            self.seen = f"it accepts connections, but no generation came back within {GENERATION_SECONDS:.0f} s"
            return False
        except aiohttp.ClientConnectionError:
            return False
        except (aiohttp.ClientError, ValueError) as error:
            self.seen = f"a generation failed: {error}"
            return False
        if not answer.get("output_ids"):
            self.seen = f"a generation came back without a token: {str(answer)[:200]}"
            return False
        return True

    async def _generate(self, session: aiohttp.ClientSession, tokens: list[int], rid: str | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "input_ids": tokens,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        }
        if rid is not None:
            body["rid"] = rid
        async with session.post(f"{self._url}/generate", json=body) as response:
            text = await response.text()
            if response.status != 200:
                raise ValueError(f"HTTP {response.status} {text[:200]}")
            answer: dict[str, Any] = json.loads(text)
            return answer

    async def _captures(self, session: aiohttp.ClientSession, capture: CaptureState) -> None:
        rid = RequestId(secrets.token_hex(8), None, 0, len(CANARY_TOKENS))
        try:
            await self._generate(session, CANARY_TOKENS, str(rid))
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
            raise HostError(f"The canary's generation failed: {error or 'no answer'}.") from error
        path = await _dump_of(rid, Path(capture.dump_dir))
        try:
            check_rows(path, rows=rid.rows, slots=len(capture.boundaries))
        finally:
            path.unlink(missing_ok=True)


async def _dump_of(rid: RequestId, folder: Path) -> Path:
    """The canary's dump once it is there, whole; raises HostError where capture says why not, or says nothing."""
    dump, error = folder / f"{rid}.safetensors", folder / f"{rid}.error.json"
    deadline = asyncio.get_running_loop().time() + DUMP_SECONDS
    while not dump.exists():
        if error.exists():
            cause = json.loads(error.read_bytes()).get("cause", "no cause given")
            error.unlink(missing_ok=True)
            raise HostError(f"Capture refused the canary: {cause}.")
        if asyncio.get_running_loop().time() > deadline:
            raise HostError(
                f"The server generates, but wrote no capture of the canary to {folder} within {DUMP_SECONDS:.0f} s.",
                remedy="See `inv attached`: capture is not active in this server.",
            )
        await asyncio.sleep(RETRY_SECONDS / 5)
    return dump


def check_rows(path: Path, *, rows: int, slots: int) -> None:
    """Check a dump's shape from its header; raises HostError naming what was expected and what is there."""
    try:
        with safe_open(path, framework="np") as dump:
            shape = dump.get_slice("hidden_states").get_shape()
    except (SafetensorError, OSError) as error:
        raise HostError(f"The canary's dump {path.name} cannot be read: {error}.") from error
    if shape[:2] != [rows, slots]:
        raise HostError(
            f"The canary's capture has {shape[0]} rows and {shape[1]} slots where {rows} and {slots} were expected.",
            remedy="Rows from a cache or a graph are missing: see the refusals in `inv serve --dry-run`.",
        )
