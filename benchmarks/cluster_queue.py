"""Simulates the replicas of a cluster of 8 and more nodes, on the real code and files of a run's queue.

`python -m benchmarks.cluster_queue --replicas 64 --hours 24 [--results FILE]`. Time is simulated. A replica holds
`AHEAD` chunks, like a real replica, works on each chunk for as long as its tokens take, is preempted at random, loses
the chunks that it had not published, and comes back. One node in twenty has half the speed. Every claim, look and
publication is made with Roost's own code in a RAM disk. Two things are computed instead: a chunk's tokens come from a
sample that `cut` made of realistic lengths, and the beats of living replicas are counted and not written. The beat file
of a replica does not age until the replica is preempted.
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
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hosts.commands.clusters import AHEAD
from remote.shared.leases.chunks import cut
from remote.shared.leases.claims import Claim
from remote.shared.leases.queue import LEASE_SECONDS, Queue, idle_seconds, patience_seconds

CHUNK_TOKENS = 2_000_000
MEAN_TOKENS, LONGEST_TOKENS, SAMPLE = 2_353, 32_768, 2_000
"""Lengths are lognormal as in `benchmarks.day`, cut at the context's length."""
TOKENS_PER_SECOND = 20_000.0
BETWEEN_SECONDS = 2.0
"""How long a replica has no work between two batches of chunks: the last record, and the next session's start."""
PREEMPTED_EVERY_SECONDS = 6 * 3600.0
AWAY_SECONDS = 420.0
"""The time until a preempted replica works again: the wait in Slurm's queue, and the start of its servers."""
SLOW_SHARE, SLOW_SPEED = 0.05, 0.5
BEAT_SECONDS, BEAT_OPERATIONS = LEASE_SECONDS / 6, 2
"""A replica sends six beats in a lease, each with one utime and one stat."""
FOREVER = 1e12
AUDITED = ("open", "os.link", "os.rename", "os.remove", "os.scandir", "os.listdir", "os.mkdir", "os.utime", "os.chmod")
counts: Counter[str] = Counter()


class Simulated(Queue):
    """The queue, whose files have the simulation's time."""

    now = 0.0

    def beat(self) -> float:
        super().beat()
        os.utime(self._beats / self.holder, (FOREVER, FOREVER))
        counts["os.utime"] -= 1  # the simulation's own
        return self.now

    def stamp(self, claim: Claim) -> Claim:
        """Give a claim's file the simulated time."""
        os.utime(self.claims._path(claim.chunk, claim.token), (self.now, self.now))
        counts["os.utime"] -= 1
        return claim

    def die(self) -> None:
        """Send no more beats from now on."""
        os.utime(self._beats / self.holder, (self.now, self.now))
        counts["os.utime"] -= 1


@dataclass
class Replica:
    """One node's replica over all its attempts."""

    number: int
    queue: Simulated
    speed: float
    preempted_at: float
    attempt: int = 0
    held: list[Claim] = field(default_factory=list)
    since: dict[int, float] = field(default_factory=dict)
    """The time at which each chunk was claimed."""
    taken: list[float] = field(default_factory=list)
    """The seconds from a chunk's claim to its result, as a replica measures them."""
    looks: int = 0
    idle_seconds: float = 0.0
    away_seconds: float = 0.0


class Fleet:
    """The simulation of one run."""

    def __init__(self, replicas: int, hours: float, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.folder = folder
        speeds = [TOKENS_PER_SECOND * (SLOW_SPEED if self.draw.random() < SLOW_SHARE else 1.0) for _ in range(replicas)]
        sample = _chunk_sizes(seed)
        self.count = max(1, round(sum(speeds) * hours * 3600 / (sum(sample) / len(sample))))
        self.sizes = self.draw.choices(sample, k=self.count)
        self.ideal = sum(self.sizes) / sum(speeds)
        self.replicas = [
            Replica(number, self._queue(number, 0), speed, self._next_preemption(0.0))
            for number, speed in enumerate(speeds)
        ]
        self.due: list[tuple[float, int, int, str]] = []
        self.published, self.ended, self.refused = 0, 0.0, 0

    def run(self) -> None:
        """Run until every chunk is published and every replica has noticed it."""
        for replica in self.replicas:
            self._next(replica, 0.0, "look")
        while self.due:
            now, number, attempt, what = heapq.heappop(self.due)
            replica = self.replicas[number]
            Simulated.now = now
            if attempt == replica.attempt:
                {"look": self._look, "publish": self._publish, "away": self._go, "back": self._back}[what](replica, now)

    def _next(self, replica: Replica, at: float, what: str) -> None:
        if what in ("look", "publish") and at > replica.preempted_at and self.published < self.count:
            at, what = replica.preempted_at, "away"
        heapq.heappush(self.due, (at, replica.number, replica.attempt, what))

    def _look(self, replica: Replica, now: float) -> None:
        while len(replica.held) < AHEAD and (claim := self._take(replica)) is not None:
            replica.held.append(claim)
            replica.since[claim.chunk] = now
        if not replica.held:
            counts["taken"] += 1
            slow = replica.queue.take_slow(patience_seconds(replica.taken, LEASE_SECONDS))
            if slow:
                replica.held.append(replica.queue.stamp(slow))
                replica.since[slow.chunk] = now
        if replica.held:
            replica.looks = 0
            self._next(replica, now + BETWEEN_SECONDS + self._seconds(replica), "publish")
        elif not replica.queue.is_over():
            pause = idle_seconds(replica.looks, LEASE_SECONDS)
            replica.looks += 1
            replica.idle_seconds += pause
            self._next(replica, now + pause, "look")

    def _take(self, replica: Replica) -> Claim | None:
        counts["taken"] += 1
        claim = replica.queue.take()
        return replica.queue.stamp(claim) if claim else None

    def _seconds(self, replica: Replica) -> float:
        return self.sizes[replica.held[0].chunk] / replica.speed

    def _publish(self, replica: Replica, now: float) -> None:
        counts["published"] += 1
        claim = replica.held.pop(0)
        replica.taken.append(now - replica.since.pop(claim.chunk))
        aside = replica.queue.results.aside(claim.chunk)
        (aside / "rows.json").write_text("{}")
        if not replica.queue.results.has(claim.chunk) and replica.queue.results.publish(claim.chunk, aside):
            self.published += 1
            self.ended = now
        else:
            self.refused += 1
            shutil.rmtree(aside)
        if replica.held:
            self._next(replica, now + self._seconds(replica), "publish")
        else:
            self._next(replica, now, "look")

    def _go(self, replica: Replica, now: float) -> None:
        replica.queue.die()
        replica.attempt += 1
        replica.held.clear()
        replica.since.clear()
        replica.away_seconds += AWAY_SECONDS
        self._next(replica, now + AWAY_SECONDS, "back")

    def _back(self, replica: Replica, now: float) -> None:
        replica.queue = self._queue(replica.number, replica.attempt)
        replica.preempted_at = self._next_preemption(now)
        self._look(replica, now)

    def _queue(self, number: int, attempt: int) -> Simulated:
        return Simulated(self.folder, self.count, f"r{number}.{attempt}")

    def _next_preemption(self, now: float) -> float:
        return now + self.draw.expovariate(1 / PREEMPTED_EVERY_SECONDS)


def _chunk_sizes(seed: int) -> list[int]:
    """Return the tokens of some chunks of realistic records, cut by Roost's own code."""
    sigma = 0.8
    draw = np.random.default_rng(seed)
    records = SAMPLE * CHUNK_TOKENS // MEAN_TOKENS
    lengths = draw.lognormal(np.log(MEAN_TOKENS) - sigma**2 / 2, sigma, records).clip(16, LONGEST_TOKENS).astype(int)
    chunks = cut(lengths.tolist(), CHUNK_TOKENS)
    sums = np.add.reduceat(lengths, np.array(chunks.starts[:-1]))
    found: list[int] = sums[:-1].tolist()
    return found


def simulate(replicas: int, hours: float, folder: Path, seed: int) -> dict[str, object]:
    """Run a fleet to its end."""
    counts.clear()
    fleet = Fleet(replicas, hours, folder, seed)
    fleet.run()
    ended, all_speed = fleet.ended, sum(replica.speed for replica in fleet.replicas)
    away = sum(replica.speed * replica.away_seconds for replica in fleet.replicas)
    last = sum(1 for queue in fleet.replicas if queue.idle_seconds)
    audited = sum(counts[name] for name in AUDITED)
    beats = replicas * ended / BEAT_SECONDS
    return {
        "replicas": replicas,
        "chunks": fleet.count,
        "hours": round(ended / 3600, 3),
        "preemptions": sum(replica.attempt for replica in fleet.replicas),
        "of_ideal": round(fleet.ideal / ended, 4),
        "of_ideal_of_those_present": round(sum(fleet.sizes) / (all_speed * ended - away), 4),
        "idle_share": round(sum(replica.idle_seconds for replica in fleet.replicas) / (replicas * ended), 5),
        "replicas_idle_at_the_end": last,
        "refused_chunks": fleet.refused,
        "queue_operations_per_second": round((counts["taken"] + counts["published"]) / ended, 3),
        "metadata_operations_per_second": round((audited + BEAT_OPERATIONS * beats) / ended, 2),
        "metadata_operations_per_chunk": round(audited / fleet.count, 1),
        "of_these_directory_reads_per_second": round((counts["os.scandir"] + counts["os.listdir"]) / ended, 3),
        "beats_per_second": round(beats / ended, 2),
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
