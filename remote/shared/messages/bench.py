"""A server's speed as SGLang's own load generator measured it, and the circumstances of the measurement."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, field_validator

from remote.shared.messages.envelope import Message

Profile = Literal["single", "prefill", "concurrent"]
PROFILES: tuple[Profile, ...] = ("single", "prefill", "concurrent")


def measured(values: list[float]) -> list[float]:
    """Return the values; raises ValueError if there are none, or if one is not above 0, because logarithms follow."""
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError("a measurement has values, each a number above 0")
    return values


class Measurement(Message):
    """One quantity, with a value for each repetition."""

    name: str
    """The same in all results, such as `decode tokens/s, 1 at once`."""
    unit: str
    better: Literal["higher", "lower"]
    values: list[float]

    _measured = field_validator("values")(measured)


class GpuCondition(Message):
    """A GPU's condition right before or after a measurement."""

    index: int
    name: str
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    celsius: int | None = None
    throttled: str = ""
    """nvidia-smi's reasons for a lower clock; empty if nothing slows the GPU."""
    memory_used_bytes: int = 0


class BenchRequest(Message):
    """Measure a ready server of this workdir."""

    server: str = "main"
    profiles: list[Profile] = Field(default_factory=lambda: list(PROFILES))
    repetitions: int = Field(default=5, ge=1)
    prompt_tokens: int = 256
    output_tokens: int = 128
    prefill_lengths: list[int] = Field(default_factory=lambda: [512, 2048, 8192])
    concurrency: list[int] = Field(default_factory=lambda: [1, 8, 64])
    seed: int = 1
    deadline_seconds: float = 3600.0


class Sent(Message):
    """What every request of one case sent and got back, as the server itself counted."""

    name: str
    requests: int
    """The number of requests over all repetitions, without the warm-up."""
    prompt_tokens: int
    """Tokens of each prompt."""
    output_tokens: int
    """Tokens of each answer."""


class BenchResult(Message):
    """The measured numbers and everything that they depend on."""

    label: str = ""
    host: str = ""
    server: str
    mode: str
    taken_at: float
    seconds: float
    sglang: str
    torch: str
    driver: str = ""
    nccl: str = ""
    """The version of the NCCL package installed beside torch; empty if there is none."""
    model: str
    command: list[str]
    env: dict[str, str]
    """The variables that Roost set for the server; secrets are `***`."""
    inherited: dict[str, str] = Field(default_factory=dict)
    """The server's other `NCCL_*` variables, which the host's login set; secrets are `***`."""
    capture: Literal["none", "dormant", "active"]
    """`dormant`: capture is attached to this SGLang, but the server was started without it."""
    payload: str
    request: BenchRequest
    measurements: list[Measurement]
    sent: list[Sent] = Field(default_factory=list)
    gpus_before: list[GpuCondition] = Field(default_factory=list)
    gpus_after: list[GpuCondition] = Field(default_factory=list)
    left_out: list[str] = Field(default_factory=list)
    """A sentence for each requested measurement that is impossible here."""
    disturbed: list[str] = Field(default_factory=list)
    """A sentence for each thing that may have changed the numbers: a foreign process on a GPU, throttling."""
