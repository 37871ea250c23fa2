"""Capturing servers on CPU, what they are asked, and what transformers says about the same prompts."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from hosts.practice.serving import CpuServer
from remote.attach.ways import environment as attach_environment
from remote.capture.environment import environment
from remote.capture.request_id import RequestId
from remote.messages.capture import CaptureStatus
from remote.messages.server import CaptureSpec

DUMP_SECONDS = 60.0
RELATIVE = 1e-5


@dataclass
class CapturingServer:
    """A server with capture attached as a plugin, and its dump directory."""

    server: CpuServer
    dumps: Path

    def generate(self, tokens: Sequence[int], rid: str | None, **options: Any) -> dict[str, Any]:
        parameters = {"max_new_tokens": options.pop("new_tokens", 1), "temperature": 0, "ignore_eos": True}
        body = {"input_ids": list(tokens), "sampling_params": parameters, **options}
        body |= {"rid": rid} if rid else {}
        request = Request(
            f"{self.server.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request, timeout=300) as answer:
            parsed: dict[str, Any] = json.loads(answer.read())
            return parsed

    def capture(self, prompts: Sequence[Sequence[int]], nonce: str, **options: Any) -> list[Path]:
        """Send all prompts at once; the outcomes' files in the prompts' order, whole or `.error.json`."""
        rids = [RequestId(nonce, index, 0, len(prompt)) for index, prompt in enumerate(prompts)]
        with ThreadPoolExecutor(len(prompts)) as pool:
            list(
                pool.map(lambda pair: self.generate(pair[0], str(pair[1]), **options), zip(prompts, rids, strict=True))
            )
        return [self.outcome(rid) for rid in rids]

    def outcome(self, rid: RequestId) -> Path:
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
def capturing(
    cpu_server: Callable[..., CpuServer], tiny_model_of: Callable[..., Path], clone: Path
) -> Iterator[Callable[..., CapturingServer]]:
    """`capturing(family, flags, layers=[…])` is a running server; one asked for before is given again."""
    directories: dict[str, Path] = {}

    def serve(
        family: str = "deepseek_v3",
        flags: Sequence[str] = (),
        *,
        layers: Sequence[int] = (0, 2, 3, 5),
        env: dict[str, str] | None = None,
        **spec: Any,
    ) -> CapturingServer:
        key = repr((family, tuple(flags), tuple(layers), env, sorted(spec.items())))
        if key not in directories:
            directories[key] = Path(f"/dev/shm/roost-test-{os.getpid()}-{len(directories)}")
        dumps = directories[key]
        wanted = CaptureSpec(layers=list(layers), dump_dir=str(dumps), pinned_bytes=64 << 20, **spec)
        variables = {**attach_environment("plugin", clone), **environment(wanted), **(env or {})}
        flags = ("--disable-radix-cache", *flags)
        return CapturingServer(cpu_server(model=tiny_model_of(family), flags=flags, env=variables), dumps)

    yield serve
    for directory in directories.values():
        shutil.rmtree(directory, ignore_errors=True)


class Reference:
    """The same model in transformers: every boundary of a prompt, in float32."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self._last: list[torch.Tensor] = []
        self.model.model.layers[-1].register_forward_hook(self._keep)

    def _keep(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        self._last = [output[0] if isinstance(output, tuple) else output]

    @torch.no_grad()
    def boundaries(self, tokens: Sequence[int]) -> torch.Tensor:
        """[n + 1, rows, hidden]; the last one before the final norm."""
        output = self.model(torch.tensor([list(tokens)]), output_hidden_states=True)
        states = [state[0] for state in output.hidden_states[:-1]] + [
            self._last[0].reshape(-1, output.hidden_states[0].shape[-1])
        ]
        return torch.stack(states)

    @torch.no_grad()
    def normed(self, tokens: Sequence[int]) -> torch.Tensor:
        """The final state after the last norm, [rows, hidden]."""
        output = self.model(torch.tensor([list(tokens)]), output_hidden_states=True)
        normed: torch.Tensor = output.hidden_states[-1][0]
        return normed


@pytest.fixture(scope="session")
def reference_of(tiny_model_of: Callable[..., Path]) -> Callable[[str], Reference]:
    made: dict[str, Reference] = {}

    def of(family: str = "deepseek_v3") -> Reference:
        if family not in made:
            made[family] = Reference(tiny_model_of(family))
        return made[family]

    return of


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
def assert_right(reference_of: Callable[[str], Reference], read_dump: Callable[[Path], Dump]) -> Callable[..., float]:
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
