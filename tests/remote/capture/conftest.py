"""Capturing servers on CPU, their requests, and transformers' states for the same prompts."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from hosts.practice.paths import PracticePaths
from hosts.practice.serving import CpuServer
from remote.attach.ways import environment as attach_environment
from remote.capture.environment import environment
from remote.shared.messages.capture import CaptureStatus
from remote.shared.messages.server import CaptureSpec
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import register

DUMP_SECONDS = 60.0
RELATIVE = 1e-5


@dataclass
class CapturingServer:
    """A server with capture attached as a plugin, and its dump directory."""

    server: CpuServer
    dumps: Path

    def generate(
        self, tokens: Sequence[int], rid: str | None, *, registered: bool = True, **options: Any
    ) -> dict[str, Any]:
        parameters = {"max_new_tokens": options.pop("new_tokens", 1), "temperature": 0, "ignore_eos": True}
        body = {"input_ids": list(tokens), "sampling_params": parameters, **options}
        body |= {"rid": rid} if rid else {}
        if registered and (request := RequestId.parse(rid)) is not None:
            register(self.dumps, request.nonce)
        post = Request(f"{self.server.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(post, timeout=300) as answer:
            parsed: dict[str, Any] = json.loads(answer.read())
            return parsed

    def capture(self, prompts: Sequence[Sequence[int]], nonce: str, **options: Any) -> list[Path]:
        """Send all prompts at once; the outcomes' files in the prompts' order, whole or `.error.json`."""
        rids = [RequestId(nonce, index, 0, len(prompt)) for index, prompt in enumerate(prompts)]
        self.send(prompts, rids, **options)
        return [self.outcome(rid) for rid in rids]

    def send(self, prompts: Sequence[Sequence[int]], rids: Sequence[RequestId], **options: Any) -> None:
        """All at once; returns when all are answered."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            sent = [
                pool.submit(self.generate, prompt, str(rid), **options)
                for prompt, rid in zip(prompts, rids, strict=True)
            ]
            for answer in sent:
                answer.result()

    def outcome(self, rid: RequestId) -> Path:
        """The record's dump, or what says why there is none."""
        names = [self.dumps / f"{rid}.safetensors", self.dumps / f"{rid}.error.json"]
        return self.await_one(names)

    def await_one(self, names: Sequence[Path]) -> Path:
        deadline = time.monotonic() + DUMP_SECONDS
        while time.monotonic() < deadline:
            found = [name for name in names if name.exists()]
            if found:
                return found[0]
            time.sleep(0.01)
        raise AssertionError(f"none of {names} came; there is {sorted(os.listdir(self.dumps))}")

    def statuses(self) -> list[CaptureStatus]:
        return [CaptureStatus.model_validate_json(path.read_bytes()) for path in self.dumps.glob(".capture-*.json")]


@pytest.fixture(scope="session")
def capturing(tiny_model_of: Callable[..., Path], clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`with capturing(family, flags, layers=[…]) as server:`; server and dump directory end with it."""

    @contextmanager
    def serve(
        family: str = "deepseek_v3",
        flags: Sequence[str] = (),
        *,
        layers: Sequence[int] = (0, 2, 3, 5),
        env: dict[str, str] | None = None,
        radix: bool = False,
        model: Path | None = None,
        **spec: Any,
    ) -> Iterator[CapturingServer]:
        dumps = Path("/dev/shm") / f"roost-test-{os.getpid()}-{secrets.token_hex(4)}"
        wanted = CaptureSpec(layers=list(layers), dump_dir=str(dumps), pinned_bytes=64 << 20, **spec)
        variables = {**attach_environment("plugin", clone), **environment(wanted), **(env or {})}
        flags = (*(() if radix else ("--disable-radix-cache",)), *flags)
        log = tmp_path_factory.mktemp("capture") / "server.log"
        python = PracticePaths(clone).engine_python
        try:
            with CpuServer(python, model or tiny_model_of(family), log, flags=flags, env=variables) as server:
                yield CapturingServer(server, dumps)
        finally:
            shutil.rmtree(dumps, ignore_errors=True)

    return serve


@dataclass
class Dump:
    """A dump as any reader of safetensors sees it."""

    states: torch.Tensor
    tokens: list[int]
    metadata: dict[str, str]


@pytest.fixture(scope="session")
def read_dump() -> Callable[[Path], Dump]:
    def read(path: Path) -> Dump:
        assert path.suffix == ".safetensors", path.read_text()
        tensors = load_file(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        return Dump(tensors["hidden_states"], tensors["token_ids"].tolist(), metadata)

    return read


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest row-wise |found - wanted| / |wanted|, Euclidean."""
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


@pytest.fixture(scope="session")
def assert_right(reference_of: Callable[[str], Any], read_dump: Callable[[Path], Dump]) -> Callable[..., float]:
    """`assert_right(path, prompt, layers, family)`: each slot equals its boundary; returns the largest error."""

    def check(path: Path, prompt: Sequence[int], layers: Sequence[int], family: str = "deepseek_v3") -> float:
        dump, truth = read_dump(path), reference_of(family).boundaries(prompt)
        wanted = torch.stack([truth[k] for k in (*layers, truth.shape[0] - 1)], dim=1)
        assert dump.tokens == list(prompt)
        assert dump.states.shape == wanted.shape
        error = relative_error(dump.states, wanted)
        assert error <= RELATIVE
        return error

    return check
