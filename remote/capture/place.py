"""Where this process stands among the server's ranks, and which slots are its to write. Inside SGLang.

Of the ranks that compute the same rows (attention TP) the first writes; with DP attention each group has rows of its
own; a pipeline stage writes the boundaries behind its own blocks.
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
    """This process among the others of its server."""

    attention_tp_rank: int
    attention_dp_size: int
    replicas: int
    """Groups of ranks that hold different requests: DP attention's groups, or whole copies of the model."""
    pp_rank: int
    pp_size: int


@dataclass(frozen=True)
class Place:
    """What this process captures."""

    boundaries: tuple[int, ...]
    """Of the whole record, in slot order."""
    local: tuple[int, ...]
    """Of these, the ones behind this stage's blocks; they are the slots of this process's files."""
    depth: int
    part: int
    parts: int
    """Files that make a record: one for every pipeline stage that has slots."""
    writes: bool
    writers: int
    """Processes that write into the dump directory."""

    @property
    def suffix(self) -> str:
        """Between a dump's request id and its extension."""
        return stage_suffix(self.part, self.parts)


def find_ranks(model: Any) -> Ranks:
    """Ask SGLang, in whichever way this version answers."""
    group = getattr(model, "pp_group", None)  # families that know no pipeline have none
    stage, stages = (int(group.rank_in_group), int(group.world_size)) if group is not None else (0, 1)
    tp_rank, dp_size = _attention_ranks()
    return Ranks(tp_rank, dp_size, _replicas(dp_size), stage, stages)


def find_place(layers: Sequence[int], model: Any, blocks: Blocks, ranks: Ranks) -> Place:
    """Share the slots among the pipeline's stages. Raises UsageError for a boundary that the model does not have."""
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
    """This process's rank in its attention-TP group, and the number of attention-DP groups."""
    try:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        return int(parallel.attn_tp_rank), int(parallel.attn_dp_size)
    except (ImportError, AttributeError):
        from sglang.srt.layers import dp_attention

        return int(dp_attention.get_attention_tp_rank()), int(dp_attention.get_attention_dp_size())


def _replicas(attention_dp_size: int) -> int:
    """Groups of ranks with requests of their own; SGLang from 0.5.23 on counts them itself."""
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
