"""Decides which open records move to another host now, so that all hosts of a run end together. Pure.

Called by `hosts.commands.moves` while a laptop is attached to a run. A step is at most the taker's work of a minute or
two, so errors in the speeds matter little, and a host that dies has few records of other hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from hosts.plan.plan import Plan
from remote.shared import ranges as sets
from remote.shared.messages.lease import Moved

LEAD_SECONDS = 15.0
"""Seconds. A host that would end sooner gets its next step now, so that it is never idle."""
STEP_SECONDS = 90.0
"""Seconds of the taker's work that one step moves at most."""
CAUTION = 0.7
"""Share of the ideal number of tokens that one step moves: speeds are estimates, and moving records back costs more."""
WORTH_SECONDS = 2.0
"""Seconds. A step that would end the run less than this earlier is not made."""


@dataclass(frozen=True)
class Runner:
    """The present state of a host of the run."""

    host: str
    left: int
    """Tokens that the host still has to do, including records on their way to it."""
    speed: float
    """Tokens per second; 0 if the host does not work."""
    takes: bool
    """Whether the host could begin further records now."""
    gives: bool
    """Whether the host's open records may move to other hosts."""
    room: float = float("inf")
    """Tokens for which the host's disk has room in addition to its own open records."""

    @property
    def seconds(self) -> float:
        """Seconds until the host is done."""
        if not self.left:
            return 0.0
        return self.left / self.speed if self.speed > 0 else float("inf")


@dataclass(frozen=True)
class Move:
    """A number of tokens that should move from one host to another."""

    giver: str
    taker: str
    tokens: int


def next_moves(runners: Sequence[Runner]) -> list[Move]:
    """Return one step for every host that is done or soon will be. The host that would be idle first comes first."""
    left = {runner.host: float(runner.left) for runner in runners}
    moves = []
    for taker in sorted((one for one in runners if one.takes and one.speed > 0), key=lambda one: one.seconds):
        if taker.seconds > LEAD_SECONDS:
            break
        move = _step(taker, runners, left)
        if move is not None and move.tokens > 0:
            moves.append(move)
            left[move.giver] -= move.tokens
            left[move.taker] += move.tokens
    return moves


def lag(runners: Sequence[Runner]) -> float:
    """Return the seconds between the time at which all hosts could end together and the end of the last host."""
    at_work = [one for one in runners if one.speed > 0 and (one.takes or one.gives)]
    ends = max((one.seconds for one in runners), default=0.0)
    return max(0.0, ends - sum(one.left for one in runners) / sum(one.speed for one in at_work)) if at_work else 0.0


def _step(taker: Runner, runners: Sequence[Runner], left: dict[str, float]) -> Move | None:
    """Return a step from the host that would end last to `taker`; None if the run would not end earlier."""
    givers = [one for one in runners if one.gives and one.host != taker.host and left[one.host] > 0]
    if not givers:
        return None
    giver = max(givers, key=lambda one: left[one.host] / one.speed if one.speed else float("inf"))
    has, lacks = left[giver.host], left[taker.host]
    together = (has + lacks) / (giver.speed + taker.speed)
    surplus = has - together * giver.speed
    if giver.speed and has / giver.speed - together < WORTH_SECONDS:
        return None
    return Move(giver.host, taker.host, ceil(min(surplus * CAUTION, STEP_SECONDS * taker.speed, taker.room)))


def as_moved(plan: Plan, moved: Iterable[Moved]) -> Plan:
    """Return the plan with every record in the share of the host that has the record now. Tokens stay as planned.

    Giver and taker both report a lease, and it counts once. A record that came back is in its first share.
    """
    change: dict[str, Counter[int]] = {share.host: Counter() for share in plan.shares}
    for lease in {one.id: one for one in moved}.values():
        if lease.giver in change and lease.holder in change:
            change[lease.giver].subtract(sets.indices(lease.ranges))
            change[lease.holder].update(sets.indices(lease.ranges))
    shares = []
    for share in plan.shares:
        came = sets.from_indices(index for index, times in change[share.host].items() if times > 0)
        went = sets.from_indices(index for index, times in change[share.host].items() if times < 0)
        ranges = sets.union(sets.difference(share.ranges, went), came)
        shares.append(share.model_copy(update={"ranges": ranges, "records": sets.count(ranges)}))
    return plan.model_copy(update={"shares": shares})
