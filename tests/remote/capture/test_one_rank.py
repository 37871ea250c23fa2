"""One rank of a real server on CPU in float32, prompts in chunks of 64: every slot of every row is transformers'."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import xxhash
from safetensors.torch import load_file

from remote.parity.canary import check_canary
from remote.parity.head import load_head
from remote.parity.logprobs import ServerLogprobs, deviations
from remote.shared.shard.request_id import RequestId
from tests.remote.capture.conftest import RELATIVE

pytestmark = pytest.mark.engine

LAYERS = (0, 2, 3, 5)
CHUNK = 64
CONTEXT = 1024


@pytest.fixture(scope="module")
def server(capturing: Callable[..., Any]) -> Iterator[Any]:
    flags = ("--chunked-prefill-size", str(CHUNK), "--context-length", str(CONTEXT))
    with capturing(flags=flags, layers=LAYERS) as running:
        yield running


Prompts = Callable[..., list[list[int]]]
Check = Callable[..., float]


def test_unequal_prompts_in_flight_together(server: Any, prompts_of: Prompts, assert_right: Check) -> None:
    prompts = prompts_of(1, 5, 40, 17, 63, 1, 200, 33, 90)
    dumps = server.capture(prompts, "batch")
    assert max(assert_right(dump, prompt, LAYERS) for dump, prompt in zip(dumps, prompts, strict=True)) <= RELATIVE


@pytest.mark.parametrize("length", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1])
def test_a_prompt_around_the_chunk(server: Any, prompts_of: Prompts, assert_right: Check, length: int) -> None:
    prompts = prompts_of(2, length)
    (dump,) = server.capture(prompts, f"chunk{length}")
    assert assert_right(dump, prompts[0], LAYERS) <= RELATIVE


def test_prompts_with_a_shared_prefix_and_the_same_prompt_twice(
    server: Any, prompts_of: Prompts, assert_right: Check
) -> None:
    prefix, one, other = prompts_of(3, 70, 10, 12)
    prompts = [prefix + one, prefix + other, prefix + one]
    for nonce in ("shared", "again"):
        dumps = server.capture(prompts, nonce)
        assert max(assert_right(dump, prompt, LAYERS) for dump, prompt in zip(dumps, prompts, strict=True)) <= RELATIVE


def test_the_longest_prompt_that_the_context_admits(server: Any, prompts_of: Prompts, assert_right: Check) -> None:
    prompt = prompts_of(4, CONTEXT)[0]
    while not admitted(server, prompt):
        prompt.pop()
    assert len(prompt) > CONTEXT - 10
    assert_right(server.outcome(RequestId("longest", 0, 0, len(prompt))), prompt, LAYERS)


def admitted(server: Any, prompt: list[int]) -> bool:
    try:
        server.capture([prompt], "longest")
    except HTTPError:
        return False
    return True


def test_decoded_rows_are_never_captured(server: Any, prompts_of: Prompts, assert_right: Check) -> None:
    prompts = prompts_of(5, 30, 80)
    dumps = server.capture(prompts, "decode", new_tokens=9)
    assert [load_file(dump)["hidden_states"].shape[0] for dump in dumps] == [30, 80]
    for dump, prompt in zip(dumps, prompts, strict=True):
        assert_right(dump, prompt, LAYERS)


def test_other_traffic_leaves_no_trace(server: Any, prompts_of: Prompts, assert_right: Check) -> None:
    before = {path.name for path in server.dumps.iterdir()}
    for rid in (None, "a-users-own", "roost.n.1.0", "roost.forged.1.0.20", "roost.forged.canary.0.20"):
        server.generate(prompts_of(6, 20)[0], rid, new_tokens=2, registered=False)
    for path in ("/health", "/health_generate"):
        urlopen(server.server.url + path, timeout=60).read()
    prompt = prompts_of(7, 20)[0]
    assert_right(server.capture([prompt], "after")[0], prompt, LAYERS)
    new = {path.name for path in server.dumps.iterdir()} - before
    assert new == {".session-after", "roost.after.0.0.20.safetensors"}


def test_a_dump_names_its_record_and_settings(
    server: Any, prompts_of: Prompts, read_dump: Callable[[Path], Any]
) -> None:
    prompt = prompts_of(8, 21)[0]
    dump = read_dump(server.capture([prompt], "about")[0])
    said = dump.metadata
    assert (said["rid"], said["index"], said["rows"], said["dtype"]) == ("roost.about.0.0.21", "0", "21", "F32")
    assert json.loads(said["boundaries"]) == [*LAYERS, 6]
    assert (said["final"], said["finite"], said["sglang"], said["capture"]) == ("pre", "true", "0.5.23", "1")
    tokens = b"".join(token.to_bytes(8, "little") for token in prompt)
    assert said["token_digest"] == xxhash.xxh3_128_hexdigest(tokens)
    norms = dump.states.norm(dim=-1)
    assert json.loads(said["mean_norm"]) == pytest.approx(norms.mean(dim=0).tolist(), rel=1e-4)
    assert json.loads(said["max_norm"]) == pytest.approx(norms.amax(dim=0).tolist(), rel=1e-4)


def test_an_id_with_too_few_rows_is_refused_with_the_cause(server: Any, prompts_of: Prompts) -> None:
    rid = RequestId("short", 0, 0, 100)
    server.generate(prompts_of(9, 101)[0], str(rid))
    outcome = server.outcome(rid)
    assert outcome.suffix == ".json"
    assert json.loads(outcome.read_text()) == {
        "rid": str(rid),
        "cause": "101 rows came, but the request's id says 100.",
    }


@pytest.mark.parametrize("length", [16, 150])
def test_the_canarys_own_hook_agrees_at_all_boundaries(server: Any, prompts_of: Prompts, length: int) -> None:
    rid = RequestId("canary", None, 0, length)
    server.generate(prompts_of(10, length)[0], str(rid))
    listened = server.await_one([server.dumps / f"{rid}.canary.safetensors"])
    checked = check_canary(server.outcome(rid), [listened])
    assert checked.passed, [str(slot) for slot in checked.slots]
    assert [slot.boundary for slot in checked.slots] == [*LAYERS, 6]


def test_every_rows_logprob_equals_the_servers(
    server: Any, prompts_of: Prompts, read_dump: Callable[[Path], Any], tiny_model_path: Path
) -> None:
    head, prompt = load_head(tiny_model_path), prompts_of(11, 150)[0]
    rid = RequestId("parity", 0, 0, len(prompt))
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
    said = ServerLogprobs.of_answer(server.generate(prompt, str(rid), **asked)["meta_info"])
    rows = read_dump(server.outcome(rid)).states[:, -1]
    found = deviations(rows, prompt, said, head.norm_weight, head.eps, head.lm_head, head.dtype).summary()
    assert found.passed, str(found)
    assert (found.rows, found.top1) == (150, 1.0)
    assert found.max_error < 1e-4
    shifted = deviations(rows.roll(1, 0), prompt, said, head.norm_weight, head.eps, head.lm_head, head.dtype).summary()
    assert not shifted.passed


def test_the_status_counts_what_happened(server: Any) -> None:
    (status,) = server.statuses()
    assert (status.boundaries, status.final, status.stages, status.sglang) == ([*LAYERS, 6], "pre", 1, "0.5.23")
    assert status.records > 10
    assert status.rows > 500
    assert status.bytes_written >= status.rows * 5 * 128 * 4
    assert (server.dumps / ".roost").is_file()
