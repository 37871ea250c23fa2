"""Facts of any values are judged: a host that lies about itself gets findings, and doctor goes on with the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hosts.doctor.findings import Expectations, Network
from hosts.doctor.judge import judge
from hosts.inventory.model import Host
from remote.shared.messages.facts import Facts
from tests.hostile import examples, floats, values_of

WANTED = Expectations.of(Host(name="a", model="/m", layers=[3, 31, 59]))


@examples(60)
@given(values_of(Facts), st.tuples(floats, floats, st.one_of(st.none(), floats)))
def test_facts_of_any_values_are_judged(facts: Facts, way: tuple[float, float, float | None]) -> None:
    network = Network(round_trip_seconds=way[0], clock_skew_seconds=way[1], bytes_per_second=way[2])
    assert all(finding.text for finding in judge(facts, WANTED, network))
