"""Sets capture's hooks on a newly built model. Inside SGLang; called by `hook`."""

from __future__ import annotations

import logging
from typing import Any

import torch

from remote.capture.admission import Admission
from remote.capture.batch import supply_request_ids
from remote.capture.engine import Capture
from remote.capture.environment import Settings, settings
from remote.capture.families import Blocks, blocks_of
from remote.capture.place import Ranks, find_place, find_ranks
from remote.capture.status import keep_status
from remote.parity.canary_hook import CanaryHook
from remote.shared.errors import UsageError
from remote.shared.files import make_directory, write_whole
from remote.shared.paths import DUMP_MARKER

logger = logging.getLogger(__name__)


def attach_to_model(model: torch.nn.Module) -> Capture | None:
    """Capture this model from now on, as this process's environment says; returns None if capture is dormant.

    Raises UsageError for settings that this model cannot fulfil.
    """
    wanted = settings()
    if wanted is None:
        return None
    blocks = blocks_of(model)
    if blocks is None:
        raise UsageError(f"{type(model).__name__} belongs to no model family that capture serves.")
    supply_request_ids()
    ranks = find_ranks(model)
    place = find_place(wanted.layers, model, blocks, ranks)
    version = _sglang_version()
    admission = None
    if place.writes:
        _claim(wanted)
        admission = Admission(wanted, place, sglang=version, pinned=torch.cuda.is_available())
    capture = Capture(place, wanted.final, admission, every_rank_reads=ranks.attention_dp_size > 1)
    _hook(model, blocks, capture)
    if ranks.attention_tp_rank == 0:
        _hook_canary(model, blocks, ranks, wanted)
    if admission is not None:
        keep_status(capture, admission, wanted, sglang=version)
    logger.info("Roost captures boundaries %s of %s into %s", place.local, type(model).__name__, wanted.dump_dir)
    return capture


def _hook(model: torch.nn.Module, blocks: Blocks, capture: Capture) -> None:
    def before(_: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        capture.before(_forward_batch(arguments, keywords))

    def after(_: torch.nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        capture.after(output)

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after)
    for boundary in capture.place.local:
        if boundary == 0:
            _hook_embedding(blocks.block(model, 0), blocks, capture)
        else:
            _hook_block(blocks.block(model, boundary - 1), boundary, capture)


def _hook_block(block: torch.nn.Module, boundary: int, capture: Capture) -> None:
    def hook(_: torch.nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        capture.at_block(boundary, output)

    block.register_forward_hook(hook)


def _hook_embedding(block: torch.nn.Module, blocks: Blocks, capture: Capture) -> None:
    def hook(_: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        capture.at_embedding(blocks.embedding(arguments, keywords))

    block.register_forward_pre_hook(hook, with_kwargs=True)


def _hook_canary(model: torch.nn.Module, blocks: Blocks, ranks: Ranks, wanted: Settings) -> None:
    """Set the canary's hook on every boundary that this stage's norms read, even if capture does not need it."""
    depth = blocks.depth(model)
    norms = {index: blocks.input_norm(model, index) for index in blocks.local(model)}
    if ranks.pp_rank == ranks.pp_size - 1:
        norms[depth] = blocks.final_norm(model)
    suffix = "" if ranks.pp_size == 1 else f".stage{ranks.pp_rank}of{ranks.pp_size}"
    canary = CanaryHook(norms, depth, wanted.dump_dir, suffix)

    def before(_: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        canary.before(_forward_batch(arguments, keywords))

    def after(_: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        canary.after(_forward_batch(arguments, keywords))

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)


def _forward_batch(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if "forward_batch" in keywords:
        return keywords["forward_batch"]
    return next(argument for argument in arguments if hasattr(argument, "forward_mode"))


def _claim(wanted: Settings) -> None:
    """Mark an empty, unmarked dump directory, so that it may be emptied later."""
    directory = make_directory(wanted.dump_dir)
    if not any(directory.iterdir()):
        write_whole(directory / DUMP_MARKER, b"")


def _sglang_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sglang")
    except PackageNotFoundError:
        import sglang

        return str(getattr(sglang, "__version__", "unknown"))
