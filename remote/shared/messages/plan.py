"""What planning must know of a host before anything starts there (verb `prospect`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from remote.shared.messages.envelope import Message


class ProspectRequest(Message):
    """Look at a host with the eyes of a plan."""

    model: str
    """The model's folder on the host."""
    dump_dir: str
    """Where the RAM disk with the dumps is, or will be."""


class ModelShape(Message):
    """A model as its `config.json` describes it."""

    path: str
    digest: str
    """Over the files of the model (`remote.data.model_digest`), 32 hex digits."""
    hidden_size: int = Field(ge=1)
    blocks: int = Field(ge=1)
    """Decoder blocks n; boundary n is the final state."""
    dtype: Literal["BF16", "F16", "F32"]
    """Of the weights, as safetensors names it: `BF16`, `F16` or `F32`."""
    vocab_size: int
    """Rows of the embedding."""
    context_length: int = Field(ge=1)


class Prospect(Message):
    """One host."""

    model: ModelShape
    disk_free_bytes: int
    """On the working directory's file system, for this user."""
    ramdisk_total_bytes: int
    """Size of the dump directory's file system."""
    ramdisk_free_bytes: int
    memory_available_bytes: int
    cores: int
