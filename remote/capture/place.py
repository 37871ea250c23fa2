"""Finds this process's place among the server's ranks, and the slots that it writes. Inside SGLang.

Among ranks that compute the same rows (attention TP), the first one writes. With DP attention, each group has its own
rows. A pipeline stage writes the boundaries after its own blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remote.capture.families import Blocks
from remote.shared.shard.boundaries import boundaries_of
from remote.shared.shard.names import stage_suffix


@dataclass(frozen=True)
class Ranks:
    """The position of this process among its server's ranks."""

    attention_tp_rank: int
    attention_dp_size: int
    replicas: int
    """The number of rank groups with different requests: DP attention's groups, or whole copies of the model."""
    pp_rank: int
    pp_size: int


@dataclass(frozen=True)
class Place:
    """The slots and files that this process writes."""

    boundaries: tuple[int, ...]
    """The boundaries of the whole record, in slot order."""
    local: tuple[int, ...]
    """The boundaries after this stage's blocks, which are the slots of this process's files."""
    depth: int
    part: int
    parts: int
    """The number of files of a record: one for every pipeline stage that has slots."""
    writes: bool
    writers: int
    """The number of processes that write into the dump directory."""

    @property
    def suffix(self) -> str:
        """The text between a dump's request id and its extension."""
        return stage_suffix(self.part, self.parts)


def find_ranks(model: Any) -> Ranks:
    """Return this process's position, from the attributes or functions of this version of SGLang."""
    group = getattr(model, "pp_group", None)  # families without pipeline support have no such attribute
    stage, stages = (int(group.rank_in_group), int(group.world_size)) if group is not None else (0, 1)
    tp_rank, dp_size = _attention_ranks()
    return Ranks(tp_rank, dp_size, _replicas(dp_size), stage, stages)


def find_place(layers: Sequence[int], model: Any, blocks: Blocks, ranks: Ranks) -> Place:
    """Divide the slots among the pipeline's stages. Raises UsageError for a boundary that the model does not have."""
    depth = blocks.depth(model)
    boundaries = tuple(boundaries_of(layers, depth))
    stages = [_boundaries_of(stage, boundaries) for stage in _stages(depth, ranks.pp_size)]
    with_slots = [number for number, slots in enumerate(stages) if slots]
    local = stages[ranks.pp_rank]
    return Place(
        boundaries=boundaries,
        local=local,
        depth=depth,
        part=with_slots.index(ranks.pp_rank) if local else 0,
        parts=len(with_slots),
        writes=ranks.attention_tp_rank == 0 and bool(local),
        writers=ranks.replicas * len(with_slots),
    )


def _boundaries_of(stage: range, boundaries: Sequence[int]) -> tuple[int, ...]:
    return tuple(k for k in boundaries if k - 1 in stage or (k == 0 and 0 in stage))


def _stages(depth: int, size: int) -> list[range]:
    if size == 1:
        return [range(depth)]
    from sglang.srt.distributed.utils import get_pp_indices

    return [range(*get_pp_indices(depth, rank, size)) for rank in range(size)]


def _attention_ranks() -> tuple[int, int]:
    """Return this process's rank in its attention-TP group, and the number of attention-DP groups."""
    try:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        return int(parallel.attn_tp_rank), int(parallel.attn_dp_size)
    except (ImportError, AttributeError):
        from sglang.srt.layers import dp_attention

        return int(dp_attention.get_attention_tp_rank()), int(dp_attention.get_attention_dp_size())


def _replicas(attention_dp_size: int) -> int:
    """Return the number of rank groups with their own requests; SGLang counts them itself from 0.5.23 on."""
    try:
        from sglang.srt.runtime_context import get_parallel

        return int(get_parallel().num_dp_ranks)
    except (ImportError, AttributeError):
        pass
    from sglang.srt.server_args import get_global_server_args

    try:
        return max(int(get_global_server_args().dp_size), attention_dp_size)
    except (RuntimeError, AttributeError):
        return attention_dp_size
