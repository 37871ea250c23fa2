"""`inv history` from constructed trails, and the parts of a command line that reach a trail."""

from __future__ import annotations

import pytest

from hosts import typed
from hosts.fleet import Outcome
from hosts.inventory.model import Host
from hosts.tasks.history import UNKNOWN_END, merged
from remote.shared.messages.envelope import Typed
from remote.shared.messages.trail import Ending, Step, TrailSteps


def lines(
    command: str, at: float, ending: Ending | None, *, verb: str = "", hosts: tuple[str, ...] = (), took: float = 5.0
) -> list[Step]:
    begin = Step(
        at=at, typed=Typed(id=command, words="serve --hosts all"), operator="ana@l", verb=verb, hosts=list(hosts)
    )
    if ending is None:
        return [begin]
    return [begin, begin.model_copy(update={"at": at + took, "ending": ending, "seconds": took})]


def on(name: str, *steps: Step) -> Outcome[TrailSteps]:
    return Outcome(Host(name=name, address=name), TrailSteps(steps=list(steps)))


def test_a_command_on_many_hosts_is_one_line() -> None:
    here = lines("c1", 100.0, "ok", hosts=("a", "b"))
    hosts = [on(name, *lines("c1", 101.0, "ok", verb="serve")) for name in "ab"]
    (done,) = merged(here, hosts)
    assert (done.outcome, done.hosts, done.at, done.seconds) == ("ok", ["a", "b"], 100.0, 5.0)


def test_a_hosts_different_result_is_shown_beside_the_laptops() -> None:
    here = lines("c1", 100.0, "interrupted", hosts=("a", "b"))
    (done,) = merged(
        here, [on("a", *lines("c1", 101.0, "ok", verb="serve")), on("b", *lines("c1", 101.0, None, verb="serve"))]
    )
    assert done.outcome == f"interrupted; b: serve {UNKNOWN_END}"


def test_a_command_of_another_laptop_and_one_that_was_killed_are_shown() -> None:
    here = lines("c1", 300.0, None, hosts=("a",))
    found = list(merged(here, [on("a", *lines("c2", 100.0, "failed", verb="stop"))]))
    assert [(done.at, done.outcome, done.hosts) for done in found] == [
        (100.0, "failed", ["a"]),
        (300.0, UNKNOWN_END, ["a"]),
    ]


def test_commands_on_other_hosts_are_left_out() -> None:
    assert list(merged(lines("c1", 1.0, "ok", hosts=("z",)), [on("a")])) == []


def test_calls_without_a_command_stay_apart() -> None:
    by_hand = [*lines("", 1.0, "ok", verb="stop"), *lines("", 50.0, "failed", verb="clean")]
    assert [done.ending for done in merged([], [on("a", *by_hand)])] == ["ok", "failed"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["pull", "--to", "s3://key:secret@bucket/x"], "pull --to 's3://***@bucket/x'"),
        (["x", "--api-key", "hunter2", "--to", "d"], "x --api-key '***' --to d"),
        (["x", "--api-key=hunter2"], "x '--api-key=***'"),
        (["x", "--hook", "https://hooks.example/services/T0/B0/s3cr3t"], "x --hook 'https://hooks.example/***'"),
        (["serve", "--hosts", "a b"], "serve --hosts 'a b'"),
    ],
)
def test_no_secret_of_a_command_line_reaches_a_trail(words: list[str], shown: str) -> None:
    try:
        assert typed.begin(words).words == shown
    finally:
        typed.forget()
