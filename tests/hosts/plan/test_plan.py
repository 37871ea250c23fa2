"""A plan gives every record to one host, by tokens, and reports what does not fit with remedies."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hosts.errors import UsageError
from hosts.plan.balance import level, split, tokens_of
from hosts.plan.capacity import RecordSize, Room, Share, forecast, remedies
from hosts.plan.plan import Plan, load, make_plan, replan, save
from remote.shared import ranges as sets
from tests.identities import run_identity

KIMI = run_identity(name="r", boundaries=(3, 31, 59, 61), hidden_size=7168)
GIB = 1 << 30


def lengths_of(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [min(32_000, int(rng.lognormvariate(7.2, 1.0)) + 2) for _ in range(count)]


def everything(plan: Plan) -> list[int]:
    return sorted([i for share in plan.shares for i in sets.indices(share.ranges)] + list(sets.indices(plan.delivered)))


def test_tokens_follow_the_weights_within_half_a_record() -> None:
    lengths = lengths_of(5000)
    weights = [1.0, 2.0, 0.5]
    parts = split(lengths, [(0, 5000)], weights)
    for weight, part in zip(weights, parts, strict=True):
        assert abs(tokens_of(lengths, part) - sum(lengths) * weight / 3.5) <= max(lengths)
    assert sets.union(*parts) == [(0, 5000)]
    assert sum(map(sets.count, parts)) == 5000


def test_fewer_records_than_hosts_leave_some_hosts_without_a_share() -> None:
    plan = make_plan("/d", KIMI, [10, 10], {"a": 1.0, "b": 1.0, "c": 1.0})
    assert everything(plan) == [0, 1]
    assert all(share.records for share in plan.shares)


def test_replan_moves_a_lost_hosts_records_and_keeps_finished_records() -> None:
    lengths = lengths_of(300)
    plan = make_plan("/d", KIMI, lengths, {"a": 1.0, "b": 1.0, "c": 1.0})
    shares = {share.host: share.ranges for share in plan.shares}
    done = {"a": sets.from_indices(list(sets.indices(shares["a"]))[:40]), "c": []}
    delivered = sets.from_indices(list(sets.indices(shares["b"]))[:10] + list(sets.indices(shares["a"]))[:5])
    after = replan(plan, lengths, {"a": 1.0, "c": 1.0}, done, delivered)
    assert after.epoch == 2
    assert after.lost == ["b"]
    assert everything(after) == list(range(300))
    a, c = after.share("a"), after.share("c")
    assert a is not None
    assert c is not None
    for host, share in (("a", a), ("c", c)):
        assert sets.difference(sets.difference(shares[host], delivered), share.ranges) == []
    left_a = a.tokens - tokens_of(lengths, sets.difference(done["a"], delivered))
    assert abs(left_a - c.tokens) <= 2 * max(lengths)


def test_a_host_that_is_added_gets_the_last_open_records_of_those_that_would_finish_late() -> None:
    lengths = lengths_of(400)
    plan = make_plan("/d", KIMI, lengths, {"a": 1.0, "b": 1.0})
    a, b = (plan.share(host) for host in "ab")
    assert a is not None
    assert b is not None
    done = {"a": sets.from_indices(list(sets.indices(a.ranges))[:120]), "b": []}
    after = replan(plan, lengths, {"a": 1.0, "b": 1.0, "c": 2.0}, done, relieve=True)
    assert everything(after) == list(range(400))
    for host, share in (("a", a), ("b", b)):
        now = after.share(host)
        assert now is not None
        assert sets.count(sets.difference(now.ranges, share.ranges)) <= 2
        assert sets.difference(done[host], now.ranges) == []
    left = {
        share.host: tokens_of(lengths, sets.difference(share.ranges, done.get(share.host, []))) / share.weight
        for share in after.shares
    }
    assert max(left.values()) - min(left.values()) <= 2 * max(lengths)
    assert replan(plan, lengths, {"a": 1.0, "b": 1.0}, done).shares[0].ranges == a.ranges


def test_levelling_fills_the_host_that_would_be_idle_first() -> None:
    assert level([0, 100], [1.0, 1.0], 50) == [50, 0]
    assert level([0, 100], [1.0, 1.0], 300) == [200, 100]
    assert level([0, 0], [1.0, 3.0], 400) == [100, 300]


def test_plan_survives_its_file(tmp_path: Path) -> None:
    plan = make_plan("/d", KIMI, lengths_of(50), {"a": 1.0, "b": 3.0})
    save(plan, tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan
    (tmp_path / "plan.json").write_text('{"run": 3}')
    with pytest.raises(UsageError, match="could not be read"):
        load(tmp_path / "plan.json")


@pytest.mark.parametrize("seed", range(20))
def test_range_sets_agree_with_python_sets(seed: int) -> None:
    rng = random.Random(seed)
    one, other = ({rng.randrange(60) for _ in range(rng.randrange(40))} for _ in range(2))
    a, b = sets.from_indices(one), sets.from_indices(other)
    assert list(sets.indices(sets.union(a, b))) == sorted(one | other)
    assert list(sets.indices(sets.difference(a, b))) == sorted(one - other)
    assert list(sets.indices(sets.intersection(a, b))) == sorted(one & other)
    assert sets.count(a) == len(one)
    assert all(x[1] < y[0] for x, y in pairwise(a))


def test_bytes_equal_those_of_the_real_job() -> None:
    size = RecordSize.of(KIMI)
    assert size.token_bytes == 57_352
    assert size.records_bytes(0, 87_800_000) / 1e12 == pytest.approx(5.03, abs=0.01)


def room(disk: int, *, high: int = 64 * GIB, ram: int = 1000 * GIB) -> Room:
    return Room(disk_free_bytes=disk, min_free_bytes=20 * GIB, ramdisk_bytes=ram, high_water_bytes=high)


def test_too_little_disk_is_refused_with_the_missing_bytes_and_remedies() -> None:
    size = RecordSize.of(KIMI)
    share = Share("a", records=18_656, tokens=43_900_000, longest=32_000, tokens_per_second=5_000)
    fits = forecast(share, size, room(3000 * GIB))
    assert fits.problems == ()
    assert fits.hours == pytest.approx(2.44, abs=0.01)
    assert fits.ramdisk_peak_bytes == 64 * GIB
    short = forecast(share, size, room(2000 * GIB))
    assert "its disk lacks 365 GiB" in short.problems[0]
    offered = " | ".join(remedies([short, fits], size, freeing=False))
    assert "--free" in offered
    assert "fewer layers: 2 and the final state" in offered
    assert "less weight" in offered
    assert "1 more host " in " | ".join(remedies([short, short], size, freeing=False))
    assert forecast(share, size, room(2000 * GIB), freeing=True).problems == ()
    assert remedies([fits], size, freeing=False) == []
    compressed = forecast(share, size, replace(room(2000 * GIB), packed_share=0.7))
    assert compressed.problems == ()
    assert compressed.disk_bytes == pytest.approx(0.7 * fits.disk_bytes)


def test_ram_disk_must_hold_the_mark_and_the_longest_record() -> None:
    size = RecordSize.of(KIMI)
    share = Share("a", records=10, tokens=2_000_000, longest=40_000, tokens_per_second=None)
    small_ram = forecast(share, size, room(3000 * GIB, ram=10 * GIB))
    assert "RAM disk lacks 54 GiB" in small_ram.problems[0]
    assert small_ram.hours is None
    small_mark = forecast(share, size, room(3000 * GIB, high=1 * GIB))
    assert "longest record is 2.14 GiB" in small_mark.problems[0]
    assert any("--max-len" in text for text in remedies([small_mark], size, freeing=False))
