"""A server's answers and dumps are correct or fail only their attempt, in bounded memory."""

from __future__ import annotations

import asyncio
import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest
import torch
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from remote.extract.dump import Expected, check, check_tokens, norms, open_dump, read_header, token_digest
from remote.extract.prefill import prefill
from remote.parity.logprobs import ServerLogprobs, deviations
from remote.shared.errors import RecordError
from remote.work.client import Answer, Client, _understand, most_bytes
from remote.work.failures import AttemptError, RefusedError, ServerGoneError
from tests.hostile import Maker, examples, json_values, seeds
from tests.identities import run_identity

ROWS = 3
TOKENS = np.arange(ROWS, dtype=np.int32)
IDENTITY = run_identity(boundaries=(1, 2), hidden_size=4)
EXPECTED = Expected("roost.n.0.1.3", 0, TOKENS, IDENTITY, "0.5.23", "1")
METADATA = {
    "rid": EXPECTED.rid,
    "rows": str(ROWS),
    "token_digest": token_digest(TOKENS),
    "boundaries": "[1, 2]",
    "final": "pre",
    "sglang": "0.5.23",
    "capture": "1",
    "finite": "true",
    "mean_norm": "[1.0, 1.0]",
    "max_norm": "[1.0, 1.0]",
}


def answer_like(seed: int) -> dict[str, Any]:
    """An object that could almost be a `/generate` answer."""
    maker = Maker(seed)
    meta: dict[str, Any] = {
        "prompt_tokens": ROWS,
        "finish_reason": {"type": "length"},
        "input_token_logprobs": [[None, 0, None], [-1.0, 1, None], [-1.0, 2, None]],
        "output_token_logprobs": [[-1.0, 1, None]],
        "input_top_logprobs": [None, [[-1.0, 1, None]], [[-1.0, 1, None]]],
        "output_top_logprobs": [[[-1.0, 1, None]]],
    }
    for _ in range(maker.random.randrange(3)):
        meta[maker.random.choice(list(meta))] = maker.anything()
    if maker.random.random() < 0.2:
        meta["finish_reason"] = {"type": "abort", "status_code": maker.anything(), "message": maker.anything()}
    return {"text": "", "meta_info": meta} if maker.random.random() < 0.95 else {"meta_info": maker.anything()}


def understood(status: int, body: bytes) -> Answer | str:
    """The answer, or the error's sentence."""
    try:
        return _understand(status, body, ROWS)
    except (ServerGoneError, AttemptError, RefusedError) as error:
        return str(error)


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


@examples(200)
@given(
    st.sampled_from([200, 200, 200, 200, 204, 302, 400, 408, 500, 503]),
    st.one_of(
        st.binary(max_size=60),
        json_values().map(dumped),
        seeds.map(answer_like).map(dumped),
        st.just(b"[" * 10_000),
        st.just(b'{"meta_info": ' * 2000),
    ),
)
def test_an_answer_of_any_content_is_accepted_or_fails_only_its_attempt(status: int, body: bytes) -> None:
    found = understood(status, body)
    if isinstance(found, str):
        assert len(found) < 1000
        return
    try:
        answered = ServerLogprobs.of_answer(found.meta)
        head, norm = torch.ones(5, 4), torch.ones(4)
        deviations(torch.ones(ROWS, 4), [0, 1, 2], answered, norm, 1e-6, head, torch.float32, final="pre").summary()
    except ValueError:
        return


@examples(150)
@given(seeds)
def test_a_dump_s_header_of_any_content_is_right_or_a_record_s_error(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    maker = Maker(seed)
    entries: dict[str, Any] = {
        "__metadata__": dict(METADATA),
        "token_ids": {"dtype": "I64", "shape": [ROWS], "data_offsets": [0, 24]},
        "hidden_states": {"dtype": "BF16", "shape": [ROWS, 2, 4], "data_offsets": [24, 72]},
    }
    for _ in range(maker.random.randrange(3)):
        part = maker.random.choice(list(entries.values()))
        part[maker.random.choice(list(part))] = maker.anything()
    if maker.random.random() < 0.2:
        entries[maker.random.choice([*entries, "more"])] = maker.anything()
    text = json.dumps(entries).encode()
    text = text.ljust(EXPECTED.layout.header_bytes - 8)
    dump = tmp_path_factory.mktemp("dumps") / "dump"
    dump.write_bytes(struct.pack("<Q", len(text)) + text + TOKENS.astype("<i8").tobytes() + bytes(48))
    try:
        with open_dump(dump) as file:
            found = read_header(file, dump)
            check(found, EXPECTED)
            check_tokens(file, found, EXPECTED)
        assert all(norm > 0 and math.isfinite(norm) for slots in norms(found, 2) for norm in slots)
    except RecordError:
        return


@pytest.mark.parametrize("text", [b"[" * 10_000, b'{"__metadata__": {"mean_norm": "' + b"[" * 10_000 + b'"}}'])
def test_a_deeply_nested_header_is_a_record_s_error(tmp_path: Path, text: bytes) -> None:
    dump = tmp_path / "dump"
    dump.write_bytes(struct.pack("<Q", len(text)) + text)
    with open_dump(dump) as file, pytest.raises(RecordError):
        norms(read_header(file, dump), 2)


def test_a_pipe_or_a_link_in_place_of_a_dump_is_a_record_s_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(RecordError, match="is not a regular file"):
        open_dump(tmp_path / "pipe")
    with pytest.raises(RecordError, match="is a symbolic link"):
        open_dump(tmp_path / "link")


@pytest.mark.parametrize("status", [200, 500])
def test_an_endless_answer_is_cut_off(status: int) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        while True:
            await response.write(b" " * 65536)
            sent += 65536

    async def ask() -> None:
        app = web.Application()
        app.router.add_post("/generate", endless)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            with pytest.raises(AttemptError, match="over"):
                await prefill(Client(session, port, {}, 60.0), "rid", TOKENS, logprobs=False)
        await runner.cleanup()

    asyncio.run(ask())
    assert sent < most_bytes(ROWS) + (16 << 20)


def test_the_bound_admits_every_token_s_logprobs() -> None:
    row = [-12.345678901234567, 163_839, None]
    meta = {"input_token_logprobs": [row] * 1000, "input_top_logprobs": [[row]] * 1000}
    assert len(orjson.dumps({"meta_info": meta})) < most_bytes(1000)
