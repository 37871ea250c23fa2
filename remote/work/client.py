"""Sends a record's tokens and id to a server over HTTP, and interprets the answer.

Runs on the host inside the event loop of detached work; talks only to this host's servers on loopback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from remote.work.failures import AttemptError, RefusedError, ServerGoneError

_ABORT_SECONDS = 10.0
_FACTS_SECONDS = 30.0
_BODY_LIMIT = 300


def most_bytes(rows: int) -> int:
    """Return the largest size of an answer about `rows` tokens, with their logprobs (about 100 bytes each)."""
    return (1 << 20) + 1024 * rows


@dataclass(frozen=True)
class Answer:
    """A server's answer: `meta_info`, and the complete JSON document."""

    meta: dict[str, Any]
    said: dict[str, Any] = field(default_factory=dict)


class Client:
    """Sends requests to one server."""

    def __init__(
        self, session: aiohttp.ClientSession, port: int, headers: Mapping[str, str], timeout_seconds: float
    ) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}"
        self._headers = {"Content-Type": "application/json", **headers}
        self._timeout = timeout_seconds

    async def generate(
        self, rid: str, tokens: NDArray[np.int32], sampling: Mapping[str, Any], more: Mapping[str, Any] = {}
    ) -> Answer:
        """Return the server's answer to `tokens` under the request id `rid`; `more` has further keys of the request.

        Raises ServerGoneError, AttemptError or RefusedError; a request that takes too long is aborted.
        """
        body: dict[str, Any] = {"rid": rid, "input_ids": tokens.tolist(), "sampling_params": dict(sampling), **more}
        most = most_bytes(len(tokens) + int(sampling["max_new_tokens"]))
        try:
            status, answer = await asyncio.wait_for(self._post("/generate", body, most), self._timeout)
        except asyncio.TimeoutError:
            await self.abort(rid)
            raise AttemptError(f"The server did not answer within {self._timeout:g} s.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerGoneError(f"The server closed the connection: {error or type(error).__name__}.") from error
        return _understand(status, answer, len(tokens))

    async def facts(self) -> dict[str, Any]:
        """Return the server's description of itself; raises ServerGoneError if it gives none or cannot be read."""
        for path in ("/server_info", "/get_server_info"):  # older releases of SGLang have the second path
            try:
                status, answer = await asyncio.wait_for(self._call("GET", path, None, most_bytes(0)), _FACTS_SECONDS)
                told = orjson.loads(answer) if status == 200 else None
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError, AttemptError) as error:
                raise ServerGoneError(
                    f"The server did not describe itself: {error or type(error).__name__}."
                ) from error
            if isinstance(told, dict):
                return told
        return {}

    async def abort(self, rid: str) -> None:
        """Abort a request; errors of the server are ignored."""
        try:
            await asyncio.wait_for(self._post("/abort_request", {"rid": rid}, most_bytes(0)), _ABORT_SECONDS)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, AttemptError):
            return

    async def _post(self, path: str, body: dict[str, Any], most: int) -> tuple[int, bytes]:
        return await self._call("POST", path, orjson.dumps(body), most)

    async def _call(self, method: str, path: str, body: bytes | None, most: int) -> tuple[int, bytes]:
        url = self._url + path
        async with self._session.request(method, url, data=body, headers=self._headers) as response:
            answer = bytearray()
            async for chunk in response.content.iter_any():
                answer += chunk
                if len(answer) > most:
                    raise AttemptError(f"The server's answer is over {most:,} bytes long.")
            return response.status, bytes(answer)


def _understand(status: int, body: bytes, rows: int) -> Answer:
    if status == 503:
        raise ServerGoneError(f"The server is not ready: {_excerpt(body)}")
    if status in (401, 403):
        raise ServerGoneError(
            "The server refused the API key of its last known start. It may just have been restarted."
        )
    if status != 200:
        _raise(status, _excerpt(body))
    try:
        said = orjson.loads(body)
        meta = said["meta_info"]
        prompt, reason = meta["prompt_tokens"], meta.get("finish_reason") or {}
        if reason.get("type") == "abort":
            _raise(reason.get("status_code") or 500, _excerpt(str(reason.get("message") or "aborted").encode()))
        if prompt != rows:
            raise AttemptError(f"The server answered for {prompt!r:.40} tokens, but {rows} were sent.")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise AttemptError(f"The server's answer could not be read ({error!r:.100}): {_excerpt(body)}") from error
    return Answer(meta, said)


def _raise(status: int, said: str) -> None:
    message = f"The server answered {status!r:.20}: {said}"
    if 400 <= status < 500 and status not in (408, 429):
        raise RefusedError(message)
    raise AttemptError(message)


def _excerpt(body: bytes) -> str:
    return " ".join(body[:_BODY_LIMIT].decode(errors="replace").split()) or "(nothing)"
