"""Which open records should change hosts now, so that all hosts of a run end together; and a plan after moves. Pure.

Called by `hosts.commands.moves` while a laptop is attached to a run. A step is small: what the taker does in a
minute or two. So little depends on how well the speeds are known, and a host that dies holds little that was another's.
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
"""A host that ends sooner is given its next step now, so that it does not stand idle in between."""
STEP_SECONDS = 90.0
"""Of the taker's work: most that one step moves."""
CAUTION = 0.7
"""Share of what looks right that is moved at once: speeds are estimates, and moving back costs more than moving on."""
WORTH_SECONDS = 2.0
"""A step that ends the run less than this earlier is not made."""


@dataclass(frozen=True)
class Runner:
    """A host of the run as it stands."""

    host: str
    left: int
    """Tokens that it has still to do, those on their way to it included."""
    speed: float
    """Tokens a second while it works; 0 if it stands still."""
    takes: bool
    """Whether it could begin with further records now."""
    gives: bool
    """Whether its open records may go to others."""
    room: float = float("inf")
    """Tokens for which its disk has room beside what it has still to do."""

    @property
    def seconds(self) -> float:
        """Until it is done."""
        if not self.left:
            return 0.0
        return self.left / self.speed if self.speed > 0 else float("inf")


@dataclass(frozen=True)
class Move:
    """So many tokens should go from one host to another."""

    giver: str
    taker: str
    tokens: int


def next_moves(runners: Sequence[Runner]) -> list[Move]:
    """One step for every host that is done or about to be, the one that would be idle first at the front."""
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
    """Seconds by which the last host ends after the moment at which all could end together."""
    at_work = [one for one in runners if one.speed > 0 and (one.takes or one.gives)]
    ends = max((one.seconds for one in runners), default=0.0)
    return max(0.0, ends - sum(one.left for one in runners) / sum(one.speed for one in at_work)) if at_work else 0.0


def _step(taker: Runner, runners: Sequence[Runner], left: dict[str, float]) -> Move | None:
    """From the host that would end last to `taker`; None if nothing is won by it."""
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
    """The plan with every record in the share of the host that holds it by now; tokens and lengths stay as planned.

    A lease is told by its giver and its taker, and counts once. A record that came back is where it was.
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
