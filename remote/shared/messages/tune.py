"""A setting of collectives (NCCL variables), and the result of trying it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from remote.shared.errors import HostError
from remote.shared.messages.bench import measured
from remote.shared.messages.envelope import Message

Operation = Literal["all_reduce", "all_gather"]
Status = Literal["ok", "crashed", "hung", "refused"]


class Sample(Message):
    """The times of one operation at one message size."""

    operation: Operation
    size_bytes: int
    """The bytes that one rank contributes."""
    microseconds: list[float]
    """One value for each repetition: the slowest rank's mean over the calls of the repetition."""

    _measured = field_validator("microseconds")(measured)


class CollectiveChoice(Message):
    """NCCL's own choices, read from its log (`NCCL_DEBUG=INFO`)."""

    version: str = ""
    transports: list[str] = Field(default_factory=list)
    """NCCL's names of the transports: `P2P/CUMEM`, `SHM/direct/direct`, `NET/Socket/0` …"""
    link: str = ""
    """The slowest connection within a ring: NVLink, a PCIe switch, through the CPU …"""
    channels: int | None = None
    """The number of collective channels; a ring runs in each."""
    algorithms: list[str] = Field(default_factory=list)
    """Entries such as `all_reduce 57344 B: RING LL`, if this NCCL logs its tuning."""
    set_by_environment: dict[str, str] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    """NCCL's own words on values that it rejected or ignored."""


def check_gpus(wanted: list[int], here: list[int]) -> None:
    """Raise HostError if the host lacks a GPU that a server's ranks need."""
    if missing := [gpu for gpu in wanted if gpu not in here]:
        raise HostError(
            f"The server's GPU {missing[0]} is missing: this host shows {len(here)} of the {len(wanted)} GPUs that "
            "its ranks need.",
            remedy="Correct `gpus` and `tp` in the inventory, or check the GPUs with nvidia-smi.",
        )


class ScreenRequest(Message):
    """Try one setting with as many ranks as the server has."""

    env: dict[str, str] = Field(default_factory=dict)
    """The setting's variables, in addition to the login's environment."""
    gpus: list[int] = Field(default_factory=list)
    """A CUDA ordinal for each rank; if empty, `ranks` gloo ranks run on the CPU."""
    ranks: int = 2
    model: str = ""
    """The path of the model whose `hidden_size` is used if none is given."""
    hidden_size: int | None = None
    dtype_bytes: int = 2
    tokens: list[int] = Field(default_factory=lambda: [1, 8, 64, 2048, 8192])
    """Tokens in one message: decode batches and prefill chunks; a message is tokens x hidden x dtype bytes."""
    repetitions: int = 5
    deadline_seconds: float = 60.0


class ScreenResult(Message):
    """The result of one setting."""

    status: Status
    cause: str = ""
    """A sentence if the status is not `ok`."""
    backend: Literal["nccl", "gloo"]
    samples: list[Sample] = Field(default_factory=list)
    chosen: CollectiveChoice = Field(default_factory=CollectiveChoice)
    seconds: float = 0.0
