"""One rank of the microbenchmark of collectives: `python -m remote.tune.rank JSON`. Host side, needs torch.

`screen.py` starts one process for each rank, with a deadline. Each rank prints its times as one JSON line; they are
measured with CUDA events on GPUs and with the clock on CPUs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

WARM_UP_CALLS = 5
SECONDS_PER_REPETITION = 0.05
MOST_CALLS = 200


@dataclass(frozen=True)
class Task:
    """The arguments of a rank."""

    rank: int
    world: int
    meeting: str
    """A file that does not exist yet, through which the ranks find each other; a port might be taken."""
    gpu: int | None
    sizes: list[int]
    """Message sizes: the bytes that one rank contributes."""
    repetitions: int

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.gpu is None else torch.device("cuda", self.gpu)


def main(text: str) -> None:
    """Join the group, time every operation at every size, print `{operation: {bytes: [µs, …]}}`."""
    task = Task(**json.loads(text))
    if task.gpu is not None:
        torch.cuda.set_device(task.gpu)
    dist.init_process_group(
        "gloo" if task.gpu is None else "nccl",
        store=dist.FileStore(task.meeting, task.world),
        rank=task.rank,
        world_size=task.world,
    )
    times = {
        operation: {size: measure(task, call_of(task, operation, size)) for size in task.sizes}
        for operation in ("all_reduce", "all_gather")
    }
    print(json.dumps(times), flush=True)
    dist.destroy_process_group()


def call_of(task: Task, operation: str, size: int) -> Callable[[], Any]:
    """Return a call of `operation` on bf16 messages of `size` bytes, after checking its result once."""
    elements = max(1, size // 2)
    message = torch.full((elements,), float(task.rank + 1), dtype=torch.bfloat16, device=task.device)
    if operation == "all_gather":
        gathered = torch.empty(elements * task.world, dtype=torch.bfloat16, device=task.device)
        dist.all_gather_into_tensor(gathered, message)
        expected = torch.arange(1, task.world + 1, device=task.device).repeat_interleave(elements)
        _check(bool((gathered == expected).all()), operation)
        return lambda: dist.all_gather_into_tensor(gathered, message)
    total = message.clone()
    dist.all_reduce(total)
    _check(bool((total == task.world * (task.world + 1) / 2).all()), operation)
    zeros = torch.zeros_like(message)  # adding zeros keeps the values finite
    return lambda: dist.all_reduce(zeros)


def _check(right: bool, operation: str) -> None:
    if not right:
        raise SystemExit(f"{operation} gave a wrong result under this setting")


def measure(task: Task, call: Callable[[], Any]) -> list[float]:
    """Return microseconds per call, one value for each repetition; every rank runs the same number of calls."""
    for _ in range(WARM_UP_CALLS):
        call()
    calls = _calls_for(task, call)
    return [_slowest(task, _timed(task, call, calls) / calls) for _ in range(task.repetitions)]


def _calls_for(task: Task, call: Callable[[], Any]) -> int:
    once = _slowest(task, _timed(task, call, 3) / 3) / 1e6
    return max(3, min(MOST_CALLS, int(SECONDS_PER_REPETITION / max(once, 1e-6))))


def _timed(task: Task, call: Callable[[], Any], calls: int) -> float:
    """Return the microseconds that `calls` calls take."""
    if task.gpu is None:
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begun) * 1e6
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds * 1e3


def _slowest(task: Task, microseconds: float) -> float:
    value = torch.tensor([microseconds], dtype=torch.float32, device=task.device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    slowest: float = value.item()
    return slowest


if __name__ == "__main__":
    main(sys.argv[1])
