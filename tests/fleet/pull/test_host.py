"""A host of the inventory as the destination: it pulls from the others itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.inventory.model import Host
from hosts.pull import direct
from hosts.transport.openssh import ssh_command
from tests.fleet.pull.conftest import MIB, Site

pytestmark = pytest.mark.ssh


@pytest.fixture
def target(site: Site, tmp_path: Path) -> Path:
    folder = tmp_path / "on host two" / "run"
    site.to = f"two:{folder}"
    return folder


def delivered(folder: Path) -> dict[int, bytes]:
    return {int(path.stem[3:]): path.read_bytes() for path in (folder / "hidden_states").iterdir()}


def test_a_host_pulls_from_the_others_and_lets_them_free_it(
    site: Site, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def login(host: Host) -> list[str]:
        """The test's keys instead of those in the home folder of whoever runs it."""
        return ssh_command(host, tmp_path)

    monkeypatch.setattr(direct, "_login", login)
    site.give("one", {0: 9 * MIB, 1: 100})
    site.give("two", {2: MIB})
    pulled = site.pull(free=True)
    assert all(outcome.ok for outcome in pulled.outcomes), pulled.outcomes
    assert delivered(target) == site.records
    assert pulled.missing == [(3, 20)]
    assert (target / "manifest.json").exists()
    assert [outcome.result.freed for outcome in pulled.outcomes] == [2, 1]
    assert list(site.run_paths("one").shards.iterdir()) == []


def test_a_source_that_does_not_let_the_destination_in_is_named_and_costs_only_itself(site: Site, target: Path) -> None:
    site.give("one", {0: MIB})
    site.give("two", {1: MIB})
    one, two = site.pull().outcomes
    assert two.ok
    assert one.error is not None
    assert "refused" in str(one.error)
    assert list(delivered(target)) == [1]
