"""Finds the rows of each record in a forward batch. Inside SGLang; reads only host memory, never the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from remote.shared.shard.request_id import RequestId


@dataclass(frozen=True)
class Segment:
    """Rows [offset, offset + rows) of the batch are rows [first, first + rows) of the record."""

    request: RequestId
    offset: int
    first: int
    rows: int


def is_prefill(forward_batch: Any) -> bool:
    """Return whether this is a plain prefill; `is_extend()` is also True for verify batches and mixed decodes."""
    return str(forward_batch.forward_mode.name) == "EXTEND"


def segments(forward_batch: Any) -> list[Segment]:
    """Return the captured rows in the batch's order; [] if no request is Roost's or nothing is prefilled."""
    if not is_prefill(forward_batch) or not forward_batch.rids:
        return []
    found, offset = [], 0
    lengths = zip(
        forward_batch.rids, forward_batch.extend_prefix_lens_cpu, forward_batch.extend_seq_lens_cpu, strict=True
    )
    for rid, prefix, length in lengths:
        request = RequestId.parse(rid)
        if request is not None and int(length) > 0:
            found.append(Segment(request, offset, int(prefix), int(length)))
        offset += int(length)
    return found


def supply_request_ids() -> None:
    """Add `rids` to forward batches if SGLang does not (0.5.9)."""
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    if "rids" in ForwardBatch.__dataclass_fields__ or hasattr(ForwardBatch, "rids"):
        return
    original = ForwardBatch.init_new.__func__

    def init_new(cls: type, batch: Any, *arguments: Any, **keywords: Any) -> Any:
        built = original(cls, batch, *arguments, **keywords)
        built.rids = [request.rid for request in batch.reqs] if getattr(batch, "reqs", None) else None
        return built

    ForwardBatch.rids = None
    ForwardBatch.init_new = classmethod(init_new)
