"""The forward thread's part, on a small residual network: both of SGLang's loops, and passes that are not ours."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from remote.capture.batch import supply_request_ids
from remote.capture.engine import Capture
from remote.capture.gather import Gather
from remote.capture.place import Place
from remote.shared.shard.request_id import RequestId

DEPTH, HIDDEN = 4, 8
SLOTS = (0, 3, 1, DEPTH)


@dataclass
class Taken:
    """Stands where the admission is, and keeps what it is handed."""

    gathers: list[Gather] = field(default_factory=list)

    def put(self, gather: Gather) -> None:
        self.gathers.append(gather)


def place(slots: tuple[int, ...] = SLOTS) -> Place:
    return Place(boundaries=slots, local=slots, depth=DEPTH, part=0, parts=1, writes=True, writers=1)


def batch_of(mode: str, rids: list[str | None], prefixes: list[int], lengths: list[int], padding: int = 0) -> Any:
    rows = sum(lengths) + padding
    return SimpleNamespace(
        forward_mode=SimpleNamespace(name=mode),
        rids=rids,
        extend_prefix_lens_cpu=prefixes,
        extend_seq_lens_cpu=lengths,
        input_ids=torch.arange(rows, dtype=torch.int32),
    )


def forward(capture: Capture, batch: Any, *, partial: bool = False, skip: int | None = None) -> list[torch.Tensor]:
    """Run the loop of SGLang up to 0.5.20, whose blocks add to the residual in place; returns all boundaries."""
    generator = torch.Generator().manual_seed(len(batch.input_ids))
    hidden = torch.randn(len(batch.input_ids), HIDDEN, generator=generator)
    residual: torch.Tensor | None = None
    truth = [hidden.clone()]
    capture.before(batch)
    capture.at_embedding(hidden)
    for block in range(DEPTH):
        residual = hidden if residual is None else residual.add_(hidden)
        hidden = torch.randn(residual.shape, generator=generator)
        if partial:
            hidden._sglang_needs_allreduce_fusion = True
        truth.append(residual + hidden)
        if block != skip and block + 1 in capture.place.local:
            capture.at_block(block + 1, (hidden, residual))
    capture.after(truth[-1] * 7)
    return truth


def rid(index: int, rows: int) -> str:
    return str(RequestId("n", index, 0, rows))


@pytest.fixture
def taken() -> Taken:
    return Taken()


def capture_into(taken: Taken, final: Any = "pre", slots: tuple[int, ...] = SLOTS) -> Capture:
    admission: Any = taken
    return Capture(place(slots), final, admission)


def test_each_slot_is_its_boundary_in_the_configured_order(taken: Taken) -> None:
    batch = batch_of("EXTEND", [rid(1, 5), "other", rid(2, 9)], [0, 0, 4], [5, 3, 2], padding=6)
    truth = forward(capture_into(taken), batch)
    (gather,) = taken.gathers
    assert gather.cause == ""
    assert gather.states is not None
    assert torch.equal(gather.states, torch.stack([truth[k][:10] for k in SLOTS], dim=1))
    assert gather.tokens is not None
    assert gather.tokens.tolist() == list(range(10))
    assert [(s.request.index, s.offset, s.first, s.rows) for s in gather.segments] == [(1, 0, 0, 5), (2, 8, 4, 2)]


def test_the_last_slot_can_be_the_models_output(taken: Taken) -> None:
    truth = forward(capture_into(taken, "post"), batch_of("EXTEND", [rid(1, 5)], [0], [5]))
    states = taken.gathers[0].states
    assert states is not None
    assert torch.equal(states[:, -1], truth[-1] * 7)
    assert torch.equal(states[:, 1], truth[3])


@pytest.mark.parametrize("mode", ["DECODE", "MIXED", "TARGET_VERIFY", "SPLIT_PREFILL", "DLLM_EXTEND", "IDLE"])
def test_only_a_plain_prefill_is_captured(taken: Taken, mode: str) -> None:
    forward(capture_into(taken), batch_of(mode, [rid(1, 5)], [0], [5]))
    assert taken.gathers == []


def test_a_batch_without_our_requests_is_left_alone(taken: Taken) -> None:
    forward(capture_into(taken), batch_of("EXTEND", ["a", "b"], [0, 0], [5, 2]))
    assert taken.gathers == []


def test_a_partial_sum_fails_the_pass(taken: Taken) -> None:
    forward(capture_into(taken), batch_of("EXTEND", [rid(1, 5)], [0], [5]), partial=True)
    assert "partial sum" in taken.gathers[0].cause


def test_a_skipped_block_fails_the_pass(taken: Taken) -> None:
    forward(capture_into(taken), batch_of("EXTEND", [rid(1, 5)], [0], [5]), skip=2)
    assert taken.gathers[0].cause == "The forward pass skipped the block at boundary 3."


def test_rows_spread_over_ranks_fail_the_pass(taken: Taken) -> None:
    capture = capture_into(taken, slots=(1, DEPTH))
    batch = batch_of("EXTEND", [rid(1, 6)], [0], [6])
    capture.before(batch)
    for boundary in (1, DEPTH):
        capture.at_block(boundary, (torch.ones(3, HIDDEN), torch.ones(3, HIDDEN)))
    capture.after(torch.ones(3, HIDDEN))
    assert "Boundary 1 has 3 of 6 rows" in taken.gathers[0].cause


@pytest.mark.parametrize(("ours", "every_rank", "read"), [(True, False, 1), (False, False, 0), (False, True, 1)])
def test_a_rank_that_does_not_write_still_takes_part_in_reading(
    monkeypatch: pytest.MonkeyPatch, ours: bool, every_rank: bool, read: int
) -> None:
    """From 0.5.21 on reading is a collective: skipping it on one rank would leave the others waiting for ever."""
    reads: list[Any] = []
    monkeypatch.setattr("remote.capture.engine.state_after", lambda output, batch: reads.append(output))
    capture = Capture(place((1, DEPTH)), "pre", None, every_rank_reads=every_rank)
    batch = batch_of("EXTEND", [rid(1, 5) if ours else "other"], [0], [5])
    batch.residual_stream = None
    capture.before(batch)
    capture.at_block(1, "output")
    capture.after(None)
    assert len(reads) == read


def test_a_failing_read_fails_only_the_records(taken: Taken) -> None:
    capture = capture_into(taken, slots=(1, DEPTH))
    capture.before(batch_of("EXTEND", [rid(1, 5)], [0], [5]))
    capture.at_block(1, "no such output")
    capture.after(None)
    assert taken.gathers[0].cause.startswith("Boundary 1: ")


def test_batches_get_their_request_ids_where_sglang_does_not_carry_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang 0.5.9 builds a forward batch without `rids` from a worker batch that still knows its requests."""

    @dataclass
    class ForwardBatch:
        forward_mode: str

        @classmethod
        def init_new(cls, batch: Any, model_runner: Any) -> ForwardBatch:
            return cls(batch.forward_mode)

    module = SimpleNamespace(ForwardBatch=ForwardBatch)
    monkeypatch.setitem(sys.modules, "sglang.srt.model_executor.forward_batch_info", module)
    supply_request_ids()
    supply_request_ids()
    requests = [SimpleNamespace(rid="a"), SimpleNamespace(rid="b")]
    built: Any = module.ForwardBatch.init_new(SimpleNamespace(forward_mode="EXTEND", reqs=requests), None)
    assert built.rids == ["a", "b"]
    idle: Any = module.ForwardBatch.init_new(SimpleNamespace(forward_mode="IDLE", reqs=None), None)
    assert idle.rids is None
