"""A stand-in for a captured SGLang server: the same HTTP and dump protocol, made-up states, faults on demand.

A program of its own, so that it has a pid, can be killed and can come back: `python standin.py PORT`, told how to
behave by `POST /configure`, whereupon its state file says ready. The contract test holds it to the real server:
whatever the extractor relies on is asserted there of both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from remote.servers.lifecycle import key, records
from remote.shared.messages.extract import longest_record
from remote.shared.messages.server import CaptureSpec, CaptureState, ServerSpec, ServerState
from remote.shared.paths import Workdir
from remote.shared.processes import MARK, reference
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.rowsums import CANARY_INDEX, NAME, RowSums
from remote.shared.shard.rowsums import text as sums_text
from remote.shared.shard.sessions import Sessions

HEADER_BYTES = 4096
SGLANG = "0.0.standin"
CAPTURE = "1"


@dataclass
class Config:
    """How the stand-in behaves; `faults` maps a record's index to faults, one an attempt, the last one repeated."""

    workdir: str
    dump_dir: str
    port: int
    name: str = "main"
    start: int = 1
    boundaries: list[int] = field(default_factory=lambda: [1, 3, 6])
    hidden: int = 64
    dtype: str = "F32"
    final: str = "pre"
    context: int = 4096
    sglang: str = SGLANG
    capture: str = CAPTURE
    model: str = "standin"
    """A folder with a head: then input logprobs are those that the final slot gives under it."""
    weights: str = ""
    """The digest of the model's files that the server says it loaded."""
    high_water: int = 1 << 30
    stages: int = 1
    """2: the first slot comes from one pipeline stage, the others from the next."""
    delay: float = 0.0
    end: int | None = None
    """Set for a server in `serve` mode, which captures nothing and answers: the id that ends an answer."""
    deterministic: bool = False
    thinking: bool = False
    """Whether its answers begin with thinking."""
    faults: dict[str, list[str]] = field(default_factory=dict)


def states_of(tokens: list[int], config: Config) -> np.ndarray:
    """Made-up states [L, slots, H], the same for the same tokens: float32, or bfloat16 as uint16."""
    seed = xxhash.xxh3_64_intdigest(np.array(tokens, "<i8").data)
    shape = (len(tokens), len(config.boundaries), config.hidden)
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return values if config.dtype == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16)


def _nan(states: np.ndarray, tokens: list[int], config: Config) -> None:
    states[len(tokens) // 2, 1, 5] = np.nan if config.dtype == "F32" else 0x7FC0


def _zero_embedding(states: np.ndarray, tokens: list[int], config: Config) -> None:
    states[0, 0] = 0


def _zeros(states: np.ndarray, tokens: list[int], config: Config) -> None:
    states[len(tokens) // 2, 1] = 0


def _shift(states: np.ndarray, tokens: list[int], config: Config) -> None:
    states[:, -1] = np.roll(states[:, -1], 1, axis=0)


def _foreign(states: np.ndarray, tokens: list[int], config: Config) -> None:
    states[:, -1] = states_of([token ^ 1 for token in tokens], config)[:, -1]


def _second_norm(states: np.ndarray, tokens: list[int], config: Config) -> None:
    states[:, -1] = _normed(states[:, -1], config)


def _foreign_aux(states: np.ndarray, tokens: list[int], config: Config) -> None:
    states[:, 0] = states_of([token ^ 1 for token in tokens], config)[:, 0]


def _slots(states: np.ndarray, tokens: list[int], config: Config) -> None:
    states[:, [0, 1]] = states[:, [1, 0]]


def _repeated(states: np.ndarray, tokens: list[int], config: Config) -> None:
    states[len(tokens) // 2, 1] = states[len(tokens) // 2 - 1, 1]


def _stale(states: np.ndarray, tokens: list[int], config: Config) -> None:
    half = len(tokens) // 2
    states[half:, 1] = states_of([token ^ 1 for token in tokens], config)[half:, 1]


def _bit(states: np.ndarray, tokens: list[int], config: Config) -> None:
    states.view(np.uint8)[len(tokens) // 2, 1, 9] ^= 4


IN_THE_FORWARD_PASS = {
    "zero embedding": _zero_embedding,
    "shift": _shift,
    "foreign": _foreign,
    "normed": _second_norm,
}
"""Faults that capture sums up as it sees them."""
ON_THE_WAY = {
    "nan": _nan,
    "zeros": _zeros,
    "foreign slot": _foreign_aux,
    "slots exchanged": _slots,
    "row repeated": _repeated,
    "stale rows": _stale,
    "bit": _bit,
}
"""Faults that come after the sums."""


def dump_content(rid: str, tokens: list[int], config: Config, fault: str, slots: slice | None = None) -> bytes:
    """A dump as capture writes it, or a wrong one; with `slots`, the part of a pipeline stage that has these."""
    if fault == "rows":
        tokens = tokens[:-1]
    if fault == "tokens":
        tokens = [*tokens[:-1], tokens[-1] ^ 1]
    request = RequestId.parse(rid)
    assert request is not None
    boundaries = config.boundaries if fault != "boundaries" else [0, *config.boundaries[1:]]
    states = states_of(tokens, config)
    if fault in IN_THE_FORWARD_PASS:
        IN_THE_FORWARD_PASS[fault](states, tokens, config)
    sums = RowSums(CANARY_INDEX if request.index is None else request.index, boundaries)
    sums.add(states)
    digests = json.loads(sums_text(sums.totals))
    floats = states.astype(np.float32) if config.dtype == "F32" else (states.astype(np.uint32) << 16).view(np.float32)
    norms = np.linalg.norm(floats, axis=2)
    if fault == "loud":
        norms = norms * 100
    if fault in ON_THE_WAY:
        ON_THE_WAY[fault](states, tokens, config)
    about = {} if slots is None else {"record_boundaries": json.dumps(boundaries)}
    if slots is not None:
        states, norms, boundaries, digests = states[:, slots], norms[:, slots], boundaries[slots], digests[slots]
    ids = np.array(tokens, "<i8")
    metadata = {
        "rid": rid,
        "index": "canary" if request.index is None else str(request.index),
        "rows": str(len(tokens)),
        "token_digest": xxhash.xxh3_128_hexdigest(ids.data),
        "dtype": config.dtype,
        "boundaries": json.dumps(boundaries),
        "convention": "boundary: state after k blocks",
        "final": config.final,
        "mean_norm": json.dumps(norms.mean(axis=0).tolist()),
        "max_norm": json.dumps(norms.max(axis=0).tolist()),
        "finite": "false" if fault == "nonfinite" else "true",
        "sglang": config.sglang,
        "capture": config.capture,
        NAME: json.dumps(digests),
        **about,
    }
    header = {
        "__metadata__": metadata,
        "token_ids": {"dtype": "I64", "shape": [len(tokens)], "data_offsets": [0, ids.nbytes]},
        "hidden_states": {
            "dtype": config.dtype,
            "shape": list(states.shape),
            "data_offsets": [ids.nbytes, ids.nbytes + states.nbytes],
        },
    }
    text = json.dumps(header).encode().ljust(HEADER_BYTES - 8)
    return len(text).to_bytes(8, "little") + text + ids.tobytes() + states.tobytes()


def _canary_content(rid: str, tokens: list[int], config: Config) -> bytes:
    """What the canary's own hook saw: here, the configured boundaries alone."""
    from safetensors.numpy import save

    tensors = {"boundaries": states_of(tokens, config), "token_ids": np.array(tokens, np.int64)}
    return bytes(save(tensors, {"rid": rid, "boundaries": json.dumps(config.boundaries)}))


class StandIn:
    """The server; `seen` counts requests a record index, `requests` keeps what was asked for."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.seen: dict[str, int] = {}
        self.asked: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.key = ""

    async def generate(self, request: web.Request) -> web.Response:
        """`POST /generate`."""
        if dict(request.headers).get(key.HEADER) != self.key:
            return web.json_response({"error": "Unauthorized"}, status=401)
        body = json.loads(await request.read())
        tokens, rid = body["input_ids"], body["rid"]
        if len(tokens) > longest_record(self.config.context):
            message = f"Input length ({len(tokens)} tokens) exceeds the maximum allowed length."
            return web.json_response({"error": {"message": message}}, status=400)
        if self.config.end is not None:
            return await self._sampled(body, tokens, rid)
        parsed = RequestId.parse(rid)
        fault = self._fault(str(parsed.index)) if parsed else ""  # a canary's index is "None"
        await asyncio.sleep(self.config.delay)
        refusal = await self._refuse(fault)
        if refusal is not None:
            return refusal
        folder = Path(self.config.dump_dir)
        if parsed is not None and parsed.nonce in Sessions(folder) and parsed.rows == len(tokens):
            self._dump_or_refuse(rid, tokens, fault)
        return web.json_response(self._answer(body, rid, tokens, fault))

    async def _sampled(self, body: dict[str, Any], tokens: list[int], rid: str) -> web.Response:
        """An answer of many ids; the id of its request is `answer.NONCE.INDEX.TURN.ATTEMPT`."""
        from tests.remote.answer.saying import answer_of

        assert self.config.end is not None
        _, _, index, turn, _ = rid.split(".")
        self.asked.append({"index": int(index), "turn": int(turn), "input_ids": tokens, **body["sampling_params"]})
        fault = self._fault(index)
        await asyncio.sleep(self.config.delay)
        refusal = await self._refuse(fault)
        if refusal is not None:
            return refusal
        most, thinking = body["sampling_params"]["max_new_tokens"], self.config.thinking
        ids, kind = answer_of(tokens, most, self.config.end, thinking=thinking)
        meta: dict[str, Any] = {
            "id": rid,
            "finish_reason": {"type": "abort", "message": "told to abort"} if fault == "abort" else {"type": kind},
            "prompt_tokens": len(tokens),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
        }
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[-0.5, token, None] for token in ids]
        return web.json_response({"text": "", "output_ids": ids[:-1] if fault == "short" else ids, "meta_info": meta})

    async def facts(self, _: web.Request) -> web.Response:
        """`GET /server_info`."""
        return web.json_response(
            {
                "max_total_num_tokens": 100_000,
                "max_running_requests": 8,
                "enable_deterministic_inference": self.config.deterministic,
            }
        )

    def _fault(self, index: str) -> str:
        faults, seen = self.config.faults.get(index, []), self.seen.get(index, 0)
        self.seen[index] = seen + 1
        return faults[min(seen, len(faults) - 1)] if faults else ""

    async def _refuse(self, fault: str) -> web.Response | None:
        if fault == "die":
            os._exit(9)
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault in ("400", "500", "503"):
            return web.json_response({"error": {"message": f"told to answer {fault}"}}, status=int(fault))
        return web.Response(text="not json") if fault == "garbage" else None

    def _dump_or_refuse(self, rid: str, tokens: list[int], fault: str) -> None:
        """As capture does where the RAM disk is full: nothing stays aside, and the cause is left if it finds room."""
        try:
            self._dump(rid, tokens, fault)
        except OSError as error:
            cause = json.dumps({"rid": rid, "cause": f"The dump could not be written: {error.strerror}."})
            with contextlib.suppress(OSError):
                _write(Path(self.config.dump_dir) / f"{rid}.error.json", cause.encode())

    def _dump(self, rid: str, tokens: list[int], fault: str) -> None:
        folder = Path(self.config.dump_dir)
        if fault == "none":
            return
        if fault in ("error", "full"):
            cause = "No space left on the RAM disk." if fault == "full" else "A row never came."
            _write(folder / f"{rid}.error.json", json.dumps({"rid": rid, "cause": cause}).encode())
            return
        if ".canary." in rid:
            _write(folder / f"{rid}.canary.safetensors", _canary_content(rid, tokens, self.config))
        if self.config.stages == 2:
            for stage, slots in enumerate((slice(0, 1), slice(1, None))):
                content = dump_content(rid, tokens, self.config, fault, slots)
                _write(folder / f"{rid}.stage{stage}of2.safetensors", content)
            return
        content = dump_content(rid, tokens, self.config, fault)
        _write(folder / f"{rid}.safetensors", content[:-8] if fault == "short" else content)

    def _answer(self, body: dict[str, object], rid: str, tokens: list[int], fault: str) -> dict[str, object]:
        reason: dict[str, object] = {"type": "length", "length": 1}
        if fault == "abort":
            reason = {"type": "abort", "message": "told to abort", "status_code": 500}
        meta: dict[str, object] = {"id": rid, "finish_reason": reason, "prompt_tokens": len(tokens)}
        if fault == "wrong":
            meta["prompt_tokens"] = len(tokens) + 1
        if body.get("return_logprob"):
            meta |= _logprobs(tokens, self.config)
        return {"text": "", "meta_info": meta}

    async def abort(self, request: web.Request) -> web.Response:
        """`POST /abort_request`."""
        self.aborted.append(json.loads(await request.read())["rid"])
        return web.Response()

    async def report(self, _: web.Request) -> web.Response:
        """`GET /seen`: not SGLang's; what the tests ask."""
        return web.json_response({"seen": self.seen, "aborted": self.aborted, "asked": self.asked})

    async def set_faults(self, request: web.Request) -> web.Response:
        """`POST /faults`: not SGLang's; other faults from now on."""
        self.config.faults = json.loads(await request.read())
        return web.Response()

    async def configure(self, request: web.Request) -> web.Response:
        """`POST /configure`: not SGLang's; be this server from now on, and ready."""
        self.config = Config(**json.loads(await request.read()))
        self.seen, self.aborted, self.asked = {}, [], []
        folder = Path(self.config.dump_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".roost").touch()
        self.key = save_state(self.config)
        return web.Response()

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/abort_request", self.abort)
        app.router.add_get("/seen", self.report)
        app.router.add_get("/server_info", self.facts)
        app.router.add_post("/faults", self.set_faults)
        app.router.add_post("/configure", self.configure)
        return app


def _logprobs(tokens: list[int], config: Config) -> dict[str, object]:
    """As SGLang lays them out; that of the first token is not known."""
    following = [*tokens[1:], 7]
    values = [-1.0] * len(tokens)
    if config.model != "standin":
        logits = _normed(states_of(tokens, config)[:, -1], config) @ _head(config)["lm_head.weight"].T
        logits -= logits.max(axis=1, keepdims=True)
        every = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        values = [float(row[token]) for row, token in zip(every, following, strict=True)]
    pairs = [[value, token, None] for value, token in zip(values, following, strict=True)]
    return {
        "input_token_logprobs": [[None, tokens[0], None], *pairs[:-1]],
        "output_token_logprobs": pairs[-1:],
        "input_top_logprobs": [None, *([pair] for pair in pairs[:-1])],
        "output_top_logprobs": [pairs[-1:]],
    }


def _head(config: Config) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return dict(load_file(Path(config.model) / "model.safetensors"))


def _normed(rows: np.ndarray, config: Config) -> np.ndarray:
    scale = 1 / np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + 1e-6)
    return np.asarray(rows * scale * _head(config)["model.norm.weight"], np.float32)


def save_state(config: Config, status: str = "ready") -> str:
    """Write `servers/<name>/` as the supervisor does, for this process; returns the header that requests must have."""
    ref = reference(os.getpid())
    spec = CaptureSpec(layers=config.boundaries[:-1], dump_dir=config.dump_dir, high_water_bytes=config.high_water)
    state = ServerState(
        name=config.name,
        mode="extract" if config.end is None else "serve",
        status=status,
        port=config.port,
        model=config.model,
        command=[],
        log="",
        start=config.start,
        mark=os.environ[MARK],
        server=ref,
        capture=None
        if config.end is not None
        else CaptureState(
            attach="plugin",
            payload="0" * 16,
            version=config.capture,
            boundaries=config.boundaries,
            final=config.final,
            dump_dir=config.dump_dir,
        ),
        sglang=config.sglang,
        weights=config.weights,
        spec=ServerSpec(model="standin", capture=spec),
        started_at=time.time(),
    )
    paths = Workdir(Path(config.workdir)).server(config.name)
    key.issue(paths, {}, closes_admin=True)
    records.save(paths, state)
    return key.headers(paths)[key.HEADER]


def _write(path: Path, content: bytes) -> None:
    aside = path.with_name(".aside-" + path.name)
    try:
        aside.write_bytes(content)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    aside.rename(path)


async def _serve(port: int) -> None:
    runner = web.AppRunner(StandIn(Config("", "", port)).application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
