"""Decides whether a server is really ready: it generates, and in extract mode its capture is right.

Runs inside the supervisor. Talks to the server on 127.0.0.1; changes nothing.
`/health` would prove little: it can answer 200 while every generation hangs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from remote.servers.probing.canary import capture_canary
from remote.shared import foreign
from remote.shared.errors import HostError
from remote.shared.messages.server import CaptureState

PROBE_TOKENS = [11, 7, 5, 3, 2, 13, 17, 19]
"""Small ids, so that every vocabulary has them."""
GENERATION_SECONDS = 120.0
"""The first generation may compile kernels. A slower generation is tried again until the server's own deadline."""
RETRY_SECONDS = 0.5
MOST_BYTES = 1 << 20
"""Of an answer to a short prompt: the port may be answered by somebody else's program."""


class Readiness:
    """Waits for one server; `seen` is a phrase on how far it has come, for the error at the deadline."""

    def __init__(self, port: int, headers: dict[str, str], capture: CaptureState | None) -> None:
        self._port = port
        self._url = f"http://127.0.0.1:{port}"
        self._headers = headers
        self._capture = capture
        self._silent = self.seen = f"port {port} does not answer yet"

    async def wait(self) -> str:
        """Wait until the server is ready and return a sentence on its canary ("" without capture).

        Raises HostError if the server answers a request without the key or its capture is wrong. Never ends otherwise.
        """
        timeout = aiohttp.ClientTimeout(total=GENERATION_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, headers=self._headers, trust_env=False) as session:
            while not (await self._connects() and await self._is_closed(timeout) and await self._generates(session)):
                await asyncio.sleep(RETRY_SECONDS)
            self.seen = "it generates, and its capture is not proven yet"
            return await self._prove(session)

    async def once(self, *, canary: bool) -> str:
        """Ask a server that was ready before for one generation; with `canary` check its capture too.

        Returns a sentence on the canary ("" without one). The caller sets the deadline. Raises ConnectionError if the
        generation fails, HostError if the capture is wrong.
        """
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, headers=self._headers, trust_env=False) as session:
            if not await self._generates(session):
                raise ConnectionError(self.seen)
            return await self._prove(session) if canary else ""

    async def _prove(self, session: aiohttp.ClientSession) -> str:
        if self._capture is None:
            return ""
        return await capture_canary(lambda tokens, rid: self._canary(session, tokens, rid), self._capture)

    async def _is_closed(self, timeout: aiohttp.ClientTimeout) -> bool:
        """Return whether a generation without the key is refused; raises HostError if it is answered.

        Other users of the host can reach this port.
        """
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=False) as stranger,
                stranger.post(f"{self._url}/generate", json=_body(PROBE_TOKENS)) as response,
            ):
                status = response.status
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False
        if status == 200:
            raise HostError(
                "The server answers requests that carry no key, so any user of this host could change it.",
                remedy="Its log says why it ignored the key: see `inv logs`.",
            )
        return status in (401, 403)

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
        except aiohttp.ClientConnectionError as error:
            self.seen = f"the connection broke before a generation came back ({type(error).__name__})"
            return False
        except (aiohttp.ClientError, ValueError) as error:
            self.seen = f"a generation failed: {error}"
            return False
        if not answer.get("output_ids"):
            self.seen = f"a generation came back without a token: {answer!r:.200}"
            return False
        return True

    async def _generate(self, session: aiohttp.ClientSession, tokens: list[int], rid: str | None) -> dict[str, Any]:
        body = _body(tokens) | ({} if rid is None else {"rid": rid})
        async with session.post(f"{self._url}/generate", json=body) as response:
            said = bytearray()
            async for chunk in response.content.iter_any():
                said += chunk
                if len(said) > MOST_BYTES:
                    raise ValueError(f"an answer to {len(tokens)} tokens has over {MOST_BYTES >> 20} MiB")
        if response.status != 200:
            raise ValueError(f"HTTP {response.status} {_excerpt(said)}")
        answer = foreign.loads(said)
        return answer if isinstance(answer, dict) else {"instead": answer}

    async def _canary(self, session: aiohttp.ClientSession, tokens: list[int], rid: str) -> None:
        try:
            await self._generate(session, tokens, rid)
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
            raise HostError(f"The canary's generation failed: {error or 'no answer'}.") from error


def _excerpt(said: bytes | bytearray) -> str:
    return " ".join(said[:200].decode(errors="replace").split()) or "(nothing)"


def _body(tokens: list[int]) -> dict[str, Any]:
    return {
        "input_ids": tokens,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
    }
