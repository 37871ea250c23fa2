"""One setting of collectives (NCCL variables) and what came of trying it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from remote.shared.errors import HostError
from remote.shared.messages.bench import measured
from remote.shared.messages.envelope import Message

Operation = Literal["all_reduce", "all_gather"]
Status = Literal["ok", "crashed", "hung", "refused"]


class Sample(Message):
    """One operation at one message size."""

    operation: Operation
    size_bytes: int
    """What one rank contributes."""
    microseconds: list[float]
    """One value a repetition: the slowest rank's mean over the repetition's calls."""

    _measured = field_validator("microseconds")(measured)


class CollectiveChoice(Message):
    """What NCCL really did, read from its own log (`NCCL_DEBUG=INFO`)."""

    version: str = ""
    transports: list[str] = Field(default_factory=list)
    """As NCCL names them: `P2P/CUMEM`, `SHM/direct/direct`, `NET/Socket/0` …"""
    link: str = ""
    """The slowest way between two of the GPUs that a ring goes: NVLink, a PCIe switch, through the CPU …"""
    channels: int | None = None
    """Collective channels; a ring runs in each."""
    algorithms: list[str] = Field(default_factory=list)
    """`all_reduce 57344 B: RING LL`, where this NCCL logs its tuning."""
    set_by_environment: dict[str, str] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    """Values that NCCL rejected or ignored, in its own words."""


def check_gpus(wanted: list[int], here: list[int]) -> None:
    """Raise HostError if a host does not show a GPU that a server's ranks need."""
    if missing := [gpu for gpu in wanted if gpu not in here]:
        raise HostError(
            f"The server's GPU {missing[0]} is not there: this host shows {len(here)} of the {len(wanted)} GPUs that "
            "its ranks need.",
            remedy="Correct `gpus` and `tp` in the inventory, or look at nvidia-smi.",
        )


class ScreenRequest(Message):
    """Try one setting with as many ranks as the server has."""

    env: dict[str, str] = Field(default_factory=dict)
    """The setting, on top of the login's environment."""
    gpus: list[int] = Field(default_factory=list)
    """CUDA ordinals, one a rank; empty runs `ranks` gloo ranks on the CPU."""
    ranks: int = 2
    model: str = ""
    """Path of the model whose `hidden_size` counts, where that is not given."""
    hidden_size: int | None = None
    dtype_bytes: int = 2
    tokens: list[int] = Field(default_factory=lambda: [1, 8, 64, 2048, 8192])
    """Tokens in one message: decode batches and prefill chunks; a message is tokens x hidden x dtype bytes."""
    repetitions: int = 5
    deadline_seconds: float = 60.0


class ScreenResult(Message):
    """What the setting came to."""

    status: Status
    cause: str = ""
    """One sentence where the status is not `ok`."""
    backend: Literal["nccl", "gloo"]
    samples: list[Sample] = Field(default_factory=list)
    chosen: CollectiveChoice = Field(default_factory=CollectiveChoice)
    seconds: float = 0.0
