"""All hosts are listened to at once; a host that is silent or sends nonsense is lost, and comes back by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hosts.errors import HostUnreachableError
from hosts.fleet import Fleet
from hosts.inventory.model import Host, Inventory
from hosts.series import listen
from hosts.series.listen import FleetSeries
from hosts.transport.local import LocalBackend
from remote.shared.messages.history import GlanceEnd
from tests.views import host

DEADLINE_SECONDS = 30.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[Any]]]:
    """What each host's next calls do: say glances, then end or fail."""
    acts: dict[str, list[Any]] = {"a": [], "b": []}
    never = threading.Event()

    def call(self: LocalBackend, verb: str, request: Any, result: Any, *, on_item: Any, **_: Any) -> Any:
        for act in acts[self.host.name].pop(0) if acts[self.host.name] else [never]:
            if isinstance(act, Exception):
                raise act
            if isinstance(act, threading.Event):
                act.wait(DEADLINE_SECONDS)
            else:
                on_item(act)
        return GlanceEnd()

    monkeypatch.setattr(LocalBackend, "call", call)
    monkeypatch.setattr(listen, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(listen, "AGAIN_CAP_SECONDS", 0.02)
    yield acts
    never.set()


def series(tmp_path: Any) -> FleetSeries:
    hosts = {name: Host(name=name, connection="local", workdir=str(tmp_path / name)) for name in ("a", "b")}
    inventory = Inventory(path=tmp_path, hosts=hosts, local=hosts["a"])
    return FleetSeries(Fleet(inventory, list(hosts.values())))


def glance(rate: float = 900.0) -> dict[str, Any]:
    found = host("x", rate=rate).glance
    assert found is not None
    return found.model_dump(mode="json")


def test_a_lost_host_keeps_its_last_state_and_is_asked_again(said: dict[str, list[Any]], tmp_path: Any) -> None:
    said["a"] = [[glance(), HostUnreachableError("Gone.")], [HostUnreachableError("Gone.")]]
    said["b"] = [[glance(50.0), threading.Event()]]
    with series(tmp_path) as listened:
        until(lambda: listened.view().lost == ["a"] and listened.view().rate == 50.0)
        lost = listened.view().hosts[0]
        assert (lost.done, lost.rate, lost.word) == (800, 0.0, "lost")
        assert lost.lost_at >= lost.heard_at
        said["a"].append([glance(70.0), threading.Event()])
        until(lambda: listened.view().rate == 120.0)
        assert listened.view().lost == []


def test_a_host_that_sends_nonsense_is_lost_with_a_sentence(said: dict[str, list[Any]], tmp_path: Any) -> None:
    said["a"] = [[{"reading": "nothing"}]] * 3
    with series(tmp_path) as listened:
        until(lambda: listened.view().lost == ["a"])
        assert "sent a message that cannot be read" in listened.view().hosts[0].trouble


def test_a_host_that_says_nothing_for_long_is_lost(
    said: dict[str, list[Any]], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "SILENT_SECONDS", 0.0)
    said["a"] = [[glance(), threading.Event()]]
    with series(tmp_path) as listened:
        until(lambda: listened.view().lost == ["a"])


def test_the_memory_for_a_host_is_bounded(said: dict[str, list[Any]], tmp_path: Any) -> None:
    said["a"] = [[*[glance(float(number)) for number in range(listen.MOST_RATES + 60)], threading.Event()]]
    with series(tmp_path) as listened:
        until(lambda: listened.view().rate == listen.MOST_RATES + 59)
        assert len(listened.view().hosts[0].rates) == listen.MOST_RATES
