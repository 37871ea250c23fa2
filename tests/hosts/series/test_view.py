"""The fleet's sums are those of its hosts, and unknown where a part is unknown."""

from __future__ import annotations

import pytest

from hosts.money import Bill, bill, dollars, said, total
from hosts.series.view import FleetView, HostView
from remote.shared.messages.extract import Counts
from tests.views import NOW, fleet, host, recorded_fleet


def test_the_recorded_run_has_a_working_a_paused_and_a_lost_host() -> None:
    view = recorded_fleet()
    assert [one.word for one in view.hosts][1:] == ["paused", "lost"]
    assert view.lost == ["practice3"]
    assert [one.rate > 0 for one in view.hosts] == [True, False, False]
    assert view.done == sum(one.done for one in view.hosts)
    assert view.left_seconds is None  # nobody knows when a lost host is done
    assert not view.is_over
    assert {event.kind for _, event in view.events(100)} >= {"started", "paused", "lost"}


def test_a_fleet_ends_with_its_slowest_host() -> None:
    view = fleet(host("a", rate=1000.0), host("b", rate=100.0))
    assert view.left_seconds == pytest.approx(700_000 / 100)
    assert view.rate == 1100


def test_a_share_that_is_done_has_nothing_left_and_ends_the_watch() -> None:
    counts = Counts(assigned=10, done=9, quarantined=1, tokens_assigned=100, tokens_done=90)
    over = fleet(host("a", status="complete", counts=counts))
    assert over.left_seconds == 0
    assert over.is_over
    assert over.is_amiss
    assert not fleet(host("a", lost=True)).is_over


def test_a_host_that_has_not_answered_yet_is_neither_lost_nor_done() -> None:
    view = FleetView(NOW, [HostView("a")])
    assert (view.hosts[0].word, view.lost, view.is_over) == ("asked", [], False)


def test_the_fleets_dollars_are_unknown_if_a_hosts_dollars_are() -> None:
    one = bill(24.5, 7200.0, 3600.0, 2_000_000, 10**12)
    assert (one.spent, one.to_come, one.per_million_tokens, one.per_terabyte) == (49.0, 24.5, 24.5, 49.0)
    assert total([one, bill(None, 7200.0, None, 5, 5)]).spent is None
    assert total([one, one]).spent == 98.0
    assert said(one) == "$49.00 so far, $24.50 to come, $24.50 a million tokens, $49.00 a TB"
    assert said(Bill(None, None)) == ""
    assert [dollars(amount) for amount in (1234.4, 3.456, 0.0021, 0)] == ["$1,234", "$3.46", "$0.0021", "$0.00"]
