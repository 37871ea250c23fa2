"""The facts that `inv plan` needs about a host before anything starts there (verb `prospect`)."""

from __future__ import annotations

from pydantic import Field

from remote.shared.messages.envelope import Message
from remote.shared.messages.run import Dtype


class ProspectRequest(Message):
    """Ask for a host's model, disk and RAM disk."""

    model: str
    """The model's folder on the host."""
    dump_dir: str
    """The folder of the RAM disk for dumps; it need not exist yet."""


class ModelShape(Message):
    """A model as described by its `config.json`."""

    path: str
    digest: str
    """The digest of the model's files (`remote.model_digest`), 32 hex digits."""
    hidden_size: int = Field(ge=1)
    blocks: int = Field(ge=1)
    """The number n of decoder blocks; boundary n is the final state."""
    dtype: Dtype
    """The dtype of the weights, by safetensors' name."""
    vocab_size: int
    """The number of rows of the embedding."""
    context_length: int = Field(ge=1)


class Generation(Message):
    """The sampling settings in a model's `generation_config.json`; None for settings that it does not have."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None


class Prospect(Message):
    """A host's model, disk and RAM disk."""

    model: ModelShape
    generation: Generation = Field(default_factory=Generation)
    disk_free_bytes: int
    """Free space for this user on the working directory's file system."""
    ramdisk_total_bytes: int
    """The size of the dump directory's file system."""
    ramdisk_free_bytes: int
    memory_available_bytes: int
    cores: int
