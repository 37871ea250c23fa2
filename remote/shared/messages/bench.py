"""What a server's speed was, measured by SGLang's own load generator, and under which circumstances."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, field_validator

from remote.shared.messages.envelope import Message

Profile = Literal["single", "prefill", "concurrent"]
PROFILES: tuple[Profile, ...] = ("single", "prefill", "concurrent")


def measured(values: list[float]) -> list[float]:
    """Refuse what no measurement can come to: it will be divided by, and its logarithm taken."""
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError("a measurement has values, each a number above 0")
    return values


class Measurement(Message):
    """One quantity, one value a repetition."""

    name: str
    """Stable over results, as `decode tokens/s, 1 at once`."""
    unit: str
    better: Literal["higher", "lower"]
    values: list[float]

    _measured = field_validator("values")(measured)


class GpuCondition(Message):
    """A GPU at the moment before or after a measurement."""

    index: int
    name: str
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    celsius: int | None = None
    throttled: str = ""
    """Reasons as nvidia-smi names them; empty where nothing slows it."""
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
    """What one case sent and got back, every request of it, as the server itself counted."""

    name: str
    requests: int
    """Over all repetitions, without the warm-up."""
    prompt_tokens: int
    """Of each prompt."""
    output_tokens: int
    """Of each answer."""


class BenchResult(Message):
    """Numbers with all that they depend on."""

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
    """Version of the NCCL package beside torch; empty if there is none."""
    model: str
    command: list[str]
    env: dict[str, str]
    """What Roost set for the server; secrets are `***`."""
    inherited: dict[str, str] = Field(default_factory=dict)
    """The server's other `NCCL_*` variables, which the host's login set; secrets are `***`."""
    capture: Literal["none", "dormant", "active"]
    """`dormant`: capture is attached to this SGLang and the server was started without it."""
    payload: str
    request: BenchRequest
    measurements: list[Measurement]
    sent: list[Sent] = Field(default_factory=list)
    gpus_before: list[GpuCondition] = Field(default_factory=list)
    gpus_after: list[GpuCondition] = Field(default_factory=list)
    left_out: list[str] = Field(default_factory=list)
    """One sentence for each thing that was asked for and cannot be measured here."""
    disturbed: list[str] = Field(default_factory=list)
    """One sentence for each thing that may have changed the numbers: a foreign process on a GPU, throttling."""
