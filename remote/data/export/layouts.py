"""The layout that each trainer's loader expects of a record: file name, keys and norm state. Imports torch.

In every layout a file's name has the record's index in the dataset. Side files are not in folders in which a loader
takes every file for a sample. Called in the worker processes of `export`.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from remote.data.export.fp8 import SlotErrors, save_quantized, saved_errors
from remote.data.export.norm import FinalNormWeight
from remote.data.export.sample import Sample, read_sample, save_pickled
from remote.shared.codec.container import SUFFIX, unpack_file
from remote.shared.errors import UsageError
from remote.shared.files import written_aside
from remote.shared.messages.export import ExportDtype, Format
from remote.shared.messages.server import FinalNorm
from remote.shared.paths import shard_name
from remote.shared.shard.tensorfile import read_metadata

GROUP = 2000
"""Records of a folder in SpecForge's layout."""


@dataclass(frozen=True)
class Written:
    """One record in the export."""

    size_bytes: int
    linked: bool = False
    errors: SlotErrors = ()
    """For a record in float8: (mean, worst) relative error of each slot."""


class TrainerLayout(ABC):
    """One trainer's layout under `root`."""

    accepts: tuple[FinalNorm, ...]
    """Norm states of the final slot that the loader accepts, the best state first."""
    folder = "data"
    """The samples' path under the export's root, which a person gives to the trainer."""
    links = False
    """Whether records are hard links to the shards, if the file system allows it."""

    def __init__(self, root: Path, final: FinalNorm, norm: FinalNormWeight | None) -> None:
        self.root = root
        self.final = final
        self.norm = norm

    @abstractmethod
    def path(self, index: int) -> Path:
        """Return the path of record `index`."""

    @abstractmethod
    def write(self, shard: Path, index: int, loss_mask: np.ndarray) -> Written:
        """Write one record atomically."""

    def found(self, path: Path) -> Written:
        """Return the description of a complete record that an interrupted export left in `path`."""
        return Written(path.stat().st_size, linked=self.links)

    def final_state(self, sample: Sample) -> torch.Tensor:
        """Return the final state [L, H] in the norm state of this export."""
        return sample.final if self.norm is None else self.norm(sample.final)


class Speculators(TrainerLayout):
    """speculators 0.8 and later: unchanged shards beside the Arrow dataset."""

    accepts = ("pre",)
    folder = ""
    links = True

    def path(self, index: int) -> Path:
        return self.root / "hidden_states" / shard_name(index)

    def write(self, shard: Path, index: int, loss_mask: np.ndarray) -> Written:
        return link_or_copy(shard, self.path(index))


class SpeculatorsFp8(Speculators):
    """speculators 0.9 with its `fp8` backend: float8 states and their scales, half the size.

    The bytes differ from the shard's bytes. The file therefore has no row sums, and no run marks, because a run's
    identity includes the dtype of its shards. Other keys of its metadata name the run.
    """

    links = False

    def write(self, shard: Path, index: int, loss_mask: np.ndarray) -> Written:
        held, path = read_metadata(shard), self.path(index)
        metadata = {"made_from_run": held["run"], "made_from_run_digest": held["run_digest"]}
        metadata.update((name, held[name]) for name in ("sglang", "capture") if name in held)
        errors = save_quantized(read_sample(shard, index, loss_mask), path, metadata)
        return Written(path.stat().st_size, errors=errors)

    def found(self, path: Path) -> Written:
        return Written(path.stat().st_size, errors=saved_errors(path))


class SpeculatorsV1(TrainerLayout):
    """speculators up to 0.7 (`--legacy-data` from 0.5): a list of states with the final state last."""

    accepts = ("pre",)

    def path(self, index: int) -> Path:
        return self.root / self.folder / f"data_{index}.pt"

    def write(self, shard: Path, index: int, loss_mask: np.ndarray) -> Written:
        sample = read_sample(shard, index, loss_mask)
        slots = [sample.states[:, slot].clone() for slot in range(sample.states.shape[1])]
        content = {"input_ids": sample.input_ids, "hidden_states": slots, "loss_mask": sample.loss_mask}
        return Written(save_pickled(content, self.path(index)))


class SpecForge(TrainerLayout):
    """SpecForge's offline features; `hidden_state` is the final state after the norm."""

    accepts = ("post",)

    def path(self, index: int) -> Path:
        first = index - index % GROUP
        return self.root / self.folder / f"rows_{first}-{first + GROUP}" / f"data_{index}.ckpt"

    def write(self, shard: Path, index: int, loss_mask: np.ndarray) -> Written:
        sample = read_sample(shard, index, loss_mask)
        content = {
            "input_ids": sample.input_ids,
            "loss_mask": sample.loss_mask,
            "hidden_state": self.final_state(sample).unsqueeze(0),
            "aux_hidden_state": sample.aux.unsqueeze(0),
        }
        return Written(save_pickled(content, self.path(index)))


class ModelOptimizer(TrainerLayout):
    """Model-Optimizer's offline dumps; `hidden_states_prenorm` tells the loader the norm state of the final state."""

    accepts = ("post", "pre")

    def path(self, index: int) -> Path:
        return self.root / self.folder / f"{conversation_id(index)}.pt"

    def write(self, shard: Path, index: int, loss_mask: np.ndarray) -> Written:
        sample = read_sample(shard, index, loss_mask)
        content = {
            "input_ids": sample.input_ids,
            "hidden_states": self.final_state(sample),
            "aux_hidden_states": sample.aux,
            "loss_mask": sample.loss_mask,
            "conversation_id": conversation_id(index),
            "hidden_states_prenorm": self.final == "pre",
        }
        return Written(save_pickled(content, self.path(index)))


def conversation_id(index: int) -> str:
    """Return an id that sorts like the index."""
    return f"roost-{index:09d}"


LAYOUTS: dict[Format, type[TrainerLayout]] = {
    "speculators": Speculators,
    "speculators-v1": SpeculatorsV1,
    "specforge": SpecForge,
    "model-optimizer": ModelOptimizer,
}


def layout_for(format: Format, dtype: ExportDtype) -> type[TrainerLayout]:
    """Return the layout's class; raise UsageError if the trainer of `format` reads no float8."""
    if dtype == "extracted":
        return LAYOUTS[format]
    if format != "speculators":
        raise UsageError(
            f"No loader of the format {format} reads float8 states with scales.",
            remedy="Export with --format speculators (for 0.9 and later), or without --dtype.",
        )
    return SpeculatorsFp8


def final_wanted(layout: type[TrainerLayout], held: FinalNorm, model: str) -> FinalNorm:
    """Return the norm state of the export's final state; raise UsageError if the shards cannot give it."""
    if held in layout.accepts and (held == layout.accepts[0] or not model):
        return held
    if held == "post":
        raise UsageError(
            f"{layout.__name__} needs the state before the last norm, but these shards have the state after it.",
            remedy="Extract again with `final: pre` in the inventory, because a norm cannot be undone.",
        )
    if not model:
        raise UsageError(
            f"{layout.__name__} needs the state after the last norm, but these shards have the state before it.",
            remedy="Give the model's folder with --model, so that Roost can apply its norm.",
        )
    return "post"


def link_or_copy(source: Path, target: Path) -> Written:
    """Make `target` a hard link to the shard, a copy if the file systems differ, or the unpacked shard."""
    if source.suffix == SUFFIX:
        return Written(unpack_file(source, target).size)
    try:
        os.link(source, target)
        return Written(target.stat().st_size, linked=True)
    except FileExistsError:
        return Written(target.stat().st_size, linked=target.samefile(source))
    except OSError:
        with written_aside(target) as aside:
            shutil.copyfile(source, aside)
        return Written(target.stat().st_size)
