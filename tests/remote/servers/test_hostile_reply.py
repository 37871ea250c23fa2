"""Any reply on a server's port is a generation, or a phrase that describes it; in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from remote.servers.probing.ready import Readiness
from tests.hostile import examples, json_values

bodies = st.one_of(
    st.binary(max_size=60),
    json_values().map(lambda value: json.dumps(value).encode()),
    st.just(b"[" * 100_000),
    st.fixed_dictionaries({"output_ids": json_values()}).map(lambda value: json.dumps(value).encode()),
)


@contextlib.asynccontextmanager
async def port_of(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    """A port on which every generation gets this answer."""
    app = web.Application()
    app.router.add_post("/generate", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@examples(60)
@given(bodies, st.sampled_from([200, 200, 200, 401, 500]))
def test_an_answer_of_any_content_is_a_generation_or_a_phrase(body: bytes, status: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    async def ask() -> str:
        async with port_of(answer) as port:
            readiness = Readiness(port, {}, None)
            try:
                await readiness.once(canary=False)
            except ConnectionError:
                return readiness.seen
            return ""

    said = asyncio.run(ask())
    assert len(said) < 400
    assert "\n" not in said
    if not said:
        assert status == 200
        assert json.loads(body)["output_ids"]


def test_an_endless_answer_is_cut_off() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"x" * 65536)
        return response

    async def ask() -> None:
        async with port_of(answer) as port:
            await asyncio.wait_for(Readiness(port, {}, None).once(canary=False), 60)

    with pytest.raises(ConnectionError, match="over 1 MiB"):
        asyncio.run(ask())
