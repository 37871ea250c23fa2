"""A host of the inventory as the destination: it pulls from the others itself."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hosts.commands.pull import Pulled, dry_run
from hosts.console.output import Output
from hosts.console.pull import show_pulled
from hosts.errors import UsageError
from hosts.inventory.model import Host
from hosts.pull import sources
from hosts.transport.openssh import ssh_command
from remote.shared.messages.transfer import Wish
from tests.fleet.pull.conftest import MIB, OTHER_RUN, RUN, SMALL, Site, contents
from tests.fleet.pull.test_faults import wait_until

pytestmark = pytest.mark.ssh


@pytest.fixture
def target(site: Site, tmp_path: Path) -> Path:
    folder = tmp_path / "on host two" / "run"
    site.to = f"two:{folder}"
    return folder


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's keys lead from host to host, instead of those in the home folder of whoever runs it."""

    def login(host: Host) -> list[str]:
        return ssh_command(host, tmp_path)

    monkeypatch.setattr(sources, "_login", login)


def delivered(folder: Path) -> dict[int, bytes]:
    return {int(path.stem[3:]): path.read_bytes() for path in (folder / "hidden_states").iterdir()}


def test_a_host_pulls_from_the_others_and_they_free_what_it_has(site: Site, target: Path, keys: None) -> None:
    site.give("one", {0: 9 * MIB, 1: SMALL})
    site.give("two", {2: MIB})
    pulled = site.pull(free=True)
    assert all(outcome.ok for outcome in pulled.outcomes), pulled.outcomes
    assert delivered(target) == site.records
    assert pulled.missing == [(3, 20)]
    assert (target / "manifest.json").exists()
    assert [outcome.result.freed for outcome in pulled.outcomes] == [2, 1]
    assert list(site.run_paths("one").shards.iterdir()) == []
    for path in (target, target / "roost", target / "hidden_states", target / "hidden_states" / "hs_0.safetensors"):
        assert path.stat().st_mode & 0o044 == 0o044, f"another user's trainer cannot read {path}"


def test_a_source_that_refuses_the_destination_s_login_is_named_and_the_others_are_pulled(
    site: Site, target: Path
) -> None:
    site.give("one", {0: MIB})
    site.give("two", {1: MIB})
    one, two = site.pull().outcomes
    assert two.ok
    assert one.error is not None
    assert "refused" in str(one.error)
    assert list(delivered(target)) == [1]


def test_a_dry_run_counts_what_the_destination_host_lacks_and_writes_nothing(
    site: Site, target: Path, keys: None
) -> None:
    site.give("one", {0: MIB, 1: SMALL})
    for fleet in site.fleet():
        one, two = dry_run(fleet, Wish(run=RUN), site.to).outcomes
    assert (one.result.offered, one.result.present, one.result.wanted_bytes) == (2, 0, MIB + SMALL)
    assert two.result.offered == 0
    assert not target.exists()
    site.pull()
    site.give("one", {2: SMALL})
    for fleet in site.fleet():
        seen = dry_run(fleet, Wish(run=RUN), site.to)
    one, _ = seen.outcomes
    assert (one.result.offered, one.result.present, one.result.wanted_bytes) == (3, 2, SMALL)
    assert seen.missing == [(2, 20)]


def test_a_following_pull_to_a_host_continues_until_the_extractor_ends(site: Site, target: Path, keys: None) -> None:
    site.plan_sizes({1: MIB})
    site.give("one", {0: MIB})
    with site.extracting("one") as paths:
        done: list[Pulled] = []
        thread = threading.Thread(target=lambda: done.append(site.pull(follow=True, free=True)))
        thread.start()
        wait_until((target / "hidden_states" / "hs_0.safetensors").exists)
        site.give("one", {1: MIB})
        wait_until((target / "hidden_states" / "hs_1.safetensors").exists)
        assert thread.is_alive()
    thread.join(60)
    (pulled,) = done
    one, _ = pulled.outcomes
    assert (one.result.offered, one.result.delivered, one.result.freed) == (2, 2, 2)
    assert delivered(target) == site.records
    assert list(paths.shards.iterdir()) == []


@pytest.mark.parametrize("free", [False, True])
def test_a_pull_of_a_second_run_into_the_folder_of_the_first_on_a_host_is_refused(
    site: Site, target: Path, keys: None, free: bool
) -> None:
    site.give("one", {0: SMALL, 1: MIB})
    site.pull()
    before = contents(target)
    second = site.begin_second()
    with pytest.raises(UsageError, match=OTHER_RUN):
        site.pull_second(free=free)
    assert contents(target) == before
    assert second.shard(0).exists()


def test_a_source_that_holds_another_run_of_that_name_ends_the_pull_as_wrong_usage(
    site: Site, target: Path, keys: None
) -> None:
    second = site.begin_second()
    other = site.replanned_second()
    pulled = site.pull_second(free=True)
    error = pulled.outcomes[0].error
    assert isinstance(error, UsageError)
    assert f"not the run 'second' (planned as {other.identity.nonce})" in error.message
    assert show_pulled(Output(as_json=False), pulled) == 2
    assert second.shard(0).exists()


def test_freeing_into_a_host_is_refused_if_hosts_have_freed_records_into_a_folder_here(
    site: Site, target: Path, keys: None
) -> None:
    site.give_share("one", 2)
    site.give("one", {0: SMALL})
    on_host, site.to = site.to, ""
    site.pull(free=True)
    site.give("one", {1: SMALL})
    site.to = on_host
    with pytest.raises(UsageError, match="--free is refused: 1 record of the run 'trial'"):
        site.pull(free=True)
    assert not (target / "hidden_states").exists()
    assert site.run_paths("one").shard(1).exists()
