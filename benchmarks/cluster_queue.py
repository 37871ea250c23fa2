"""A cluster's queue at fleet sizes of 8 and more: simulated replicas, the queue's real code and files under them.

`python -m benchmarks.cluster_queue --replicas 64 --hours 24 [--results FILE]`. Time is simulated: a replica works on a
chunk for as long as its tokens take, is preempted at random, and comes back; one in twenty is half as fast. Every
claim, beat and publication is made with the product's own code in a RAM disk. Ideal is the time in which all replicas,
with no chunk and no preemption's loss, would have done all tokens. What Python's audit events do not tell (stat) is
not counted, nor are the beats between two chunks.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from remote.shared.leases.claims import Claim
from remote.shared.leases.queue import Queue

CHUNK_TOKENS = 2_000_000
LONGEST_TOKENS = 32_768
TOKENS_PER_SECOND = 20_000.0
PREEMPTED_EVERY_SECONDS = 6 * 3600.0
AWAY_SECONDS = 420.0
"""Until a preempted replica works again: in Slurm's queue, and its servers' start."""
SLOW_SHARE, SLOW_SPEED = 0.05, 0.5
POLL_SECONDS = 30.0
"""Between two looks of an idle replica."""
AUDITED = ("open", "os.link", "os.rename", "os.remove", "os.scandir", "os.listdir", "os.mkdir", "os.utime", "os.chmod")
counts: Counter[str] = Counter()


class Simulated(Queue):
    """The queue with the simulation's clock in its files."""

    now = 0.0

    def beat(self) -> float:
        super().beat()
        os.utime(self.folder / "beats" / self.holder, (self.now, self.now))
        return self.now


def simulate(replicas: int, hours: float, folder: Path, seed: int) -> dict[str, object]:
    """Run a fleet to its end."""
    draw = random.Random(seed)
    speeds = [TOKENS_PER_SECOND * (SLOW_SPEED if draw.random() < SLOW_SHARE else 1.0) for _ in range(replicas)]
    total = sum(speeds) * hours * 3600
    count = max(1, round(total / CHUNK_TOKENS))
    sizes = [CHUNK_TOKENS + draw.uniform(0, LONGEST_TOKENS) for _ in range(count)]
    queues = [Simulated(folder, count, f"r{number}.0") for number in range(replicas)]
    attempts, held = [0] * replicas, dict[int, Claim]()
    due = [(0.0, number, "take") for number in range(replicas)]
    preempted = [draw.expovariate(1 / PREEMPTED_EVERY_SECONDS) for _ in range(replicas)]
    idle, away, ended, published = 0.0, 0.0, 0.0, 0
    while due and published < count:
        now, number, what = heapq.heappop(due)
        Simulated.now = now
        if what == "publish":
            claim = held.pop(number)
            aside = queues[number].results.aside(claim.chunk)
            (aside / "rows.json").write_text("{}")
            published += queues[number].results.publish(claim.chunk, aside)
            counts["published"] += 1
            ended = now
        elif what == "back":
            attempts[number] += 1
            queues[number] = Simulated(folder, count, f"r{number}.{attempts[number]}")
            held.pop(number, None)
            preempted[number] = now + draw.expovariate(1 / PREEMPTED_EVERY_SECONDS)
        counts["taken"] += 1
        mine = queues[number].take()
        if mine is None:
            idle += POLL_SECONDS
            heapq.heappush(due, (now + POLL_SECONDS, number, "take"))
            continue
        held[number] = mine
        done = now + sizes[mine.chunk] / speeds[number]
        if done > preempted[number]:
            away += AWAY_SECONDS
            heapq.heappush(due, (preempted[number] + AWAY_SECONDS, number, "back"))
        else:
            heapq.heappush(due, (done, number, "publish"))
    ideal = sum(sizes) / sum(speeds)
    available = replicas * ended - away
    return {
        "replicas": replicas,
        "chunks": count,
        "hours": ended / 3600,
        "of_ideal": ideal / ended,
        "of_ideal_without_absence": sum(sizes) / (sum(speeds) / replicas * available),
        "idle_share": idle / (replicas * ended),
        "queue_operations_per_second": (counts["taken"] + counts["published"]) / ended,
        "metadata_operations_per_second": sum(counts[name] for name in AUDITED) / ended,
        "preemptions": sum(attempts),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_queue")
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="roost-queue-", dir="/dev/shm"))
    sys.addaudithook(lambda event, found: counts.update([event]) if event in AUDITED else None)
    began = time.monotonic()
    try:
        result = simulate(options.replicas, options.hours, folder, options.seed)
    finally:
        shutil.rmtree(folder)
    line = json.dumps({**result, "seed": options.seed, "computed_in_seconds": round(time.monotonic() - began, 1)})
    print(line)
    if options.results is not None:
        with options.results.open("a") as out:
            out.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
