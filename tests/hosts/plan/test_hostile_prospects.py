"""A host's facts cannot break a plan: they are refused in one sentence, or planned with finite numbers."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hosts.commands.plan import context_length, credible, identity_of, room, weights
from hosts.errors import UsageError
from hosts.inventory.model import Host
from hosts.plan.balance import split
from hosts.plan.capacity import RecordSize, Share, forecast, remedies
from hosts.plan.plan import make_plan, replan
from remote.shared import ranges as sets
from remote.shared.messages.dataset import Ranges
from remote.shared.messages.extract import Rate
from remote.shared.messages.plan import Prospect
from tests.hostile import examples, objects_like, values_of
from tests.manifests import manifest

MANIFEST = manifest(records=3, tokens=30, loss_tokens=3, max_tokens=10, vocab_size=1)
HOST = Host(name="a", model="/m", layers=[0])


@examples(100)
@given(objects_like(Prospect))
def test_a_prospect_of_any_values_is_refused_or_planned_for(value: dict[str, Any]) -> None:
    try:
        prospect = Prospect.model_validate(value)
        identity = identity_of("r", [HOST], {"a": prospect}, MANIFEST)
    except (ValidationError, UsageError):
        return
    size = RecordSize.of(identity)
    found = forecast(Share("a", 3, 30, 10, 100.0), size, room(HOST, prospect, identity.dtype))
    assert found.disk_bytes > 0
    assert context_length(HOST, prospect) > 0
    assert all(isinstance(text, str) for text in remedies([found], size, freeing=False))


@examples(50)
@given(st.lists(values_of(Rate), min_size=1, max_size=5))
def test_a_speed_that_no_host_can_have_counts_as_unknown(told: list[Rate]) -> None:
    rates = {str(number): credible(rate) or None for number, rate in enumerate(told)}
    found = list(weights(rates).values())
    assert all(math.isfinite(weight) and weight > 0 for weight in found)
    parts = split([5] * 40, [(0, 40)], found)
    assert sets.union(*parts) == [(0, 40)]


@examples(50)
@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=60),
    st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=6),
    st.data(),
)
def test_every_record_is_in_exactly_one_share_after_any_loss_of_hosts(
    lengths: list[int], speeds: list[float], data: st.DataObject
) -> None:
    hosts = {f"h{number}": speed for number, speed in enumerate(speeds)}
    plan = make_plan("/d", identity_of("r", [HOST], {"a": prospect()}, MANIFEST), lengths, hosts)
    assert members([share.ranges for share in plan.shares]) == list(range(len(lengths)))
    staying = data.draw(st.lists(st.sampled_from([*hosts, "new"]), min_size=1, unique=True))
    delivered = sets.from_indices(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=60)))
    again = replan(plan, lengths, {host: hosts.get(host, 1.0) for host in staying}, {}, delivered)
    assert members([again.delivered, *(share.ranges for share in again.shares)]) == list(range(len(lengths)))
    assert {share.host for share in again.shares} <= set(staying)


def members(parts: list[Ranges]) -> list[int]:
    """All members of all parts, a member of two parts twice."""
    return sorted(index for part in parts for index in sets.indices(part))


def prospect() -> Prospect:
    model = {"path": "/m", "digest": "0", "hidden_size": 8, "blocks": 4, "dtype": "BF16", "vocab_size": 9}
    room_there = dict.fromkeys(("disk_free_bytes", "ramdisk_total_bytes", "ramdisk_free_bytes"), 1 << 40)
    return Prospect.model_validate(
        {"model": {**model, "context_length": 100}, **room_there, "memory_available_bytes": 1 << 40, "cores": 2}
    )
