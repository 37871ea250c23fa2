"""A destination belongs to one run: whatever else comes is refused by name, and nothing there or on a host changes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts.errors import UsageError
from tests.fleet.pull.conftest import MIB, OTHER_RUN, SMALL, Site, contents
from tests.fleet.pull.test_faults import SLOW, begin

pytestmark = pytest.mark.ssh


@pytest.mark.parametrize("free", [False, True])
def test_a_pull_of_a_second_run_into_the_folder_of_the_first_is_refused(site: Site, free: bool) -> None:
    site.give("one", {0: SMALL, 1: MIB})
    site.pull(free=True)
    before, second = contents(site.destination), site.begin_second()
    with pytest.raises(UsageError, match=OTHER_RUN):
        site.pull_second(free=free)
    assert contents(site.destination) == before
    assert second.shard(0).exists()


def test_a_folder_belongs_to_its_run_after_an_interrupted_first_pull(site: Site, clone: Path) -> None:
    site.give("one", {0: 60 * MIB})
    process = begin(site, clone, *SLOW)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = contents(site.destination)
    site.begin_second()
    with pytest.raises(UsageError, match=OTHER_RUN):
        site.pull_second(free=True)
    assert contents(site.destination) == before
    site.pull()
    assert site.delivered() == site.records


def test_a_run_planned_anew_under_the_same_name_is_another_run_for_its_hosts(site: Site, clone: Path) -> None:
    paths = site.begin_second()
    other = site.replanned_second()
    error = site.pull_second(free=True).outcomes[0].error
    assert isinstance(error, UsageError)
    words = "This host holds the run 'second' (planned as {0}), not the run 'second' (planned as {1})."
    assert error.message == words.format("f" * 16, other.identity.nonce)
    assert site.inv_pull(clone, "--run", "second", "--free").returncode == 2
    assert paths.shard(0).exists()


def no_manifest(folder: Path) -> None:
    (folder / "roost" / "manifest.json").unlink()


def edited(folder: Path) -> None:
    path = folder / "roost" / "manifest.json"
    said = json.loads(path.read_bytes())
    said["identity"]["boundaries"] = [1, 2, 6, 8]
    path.write_text(json.dumps(said))


def of_before(folder: Path) -> None:
    path = folder / "roost" / "manifest.json"
    path.write_text(json.dumps({"run": "trial", "records": 20, "delivered": 2}))


def other_dataset(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"digest": "e"}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (no_manifest, "holds shards but does not say of which run: it has no roost/manifest.json"),
        (edited, "was edited: its identity has the digest [0-9a-f]{32}, and [0-9a-f]{32} was written there"),
        (of_before, "names no run .* written by a Roost that knew no run identity"),
        (other_dataset, "holds the dataset e, and the run 'trial' is of d"),
    ],
)
def test_a_destination_without_a_valid_manifest_is_refused_and_not_changed(
    site: Site, clone: Path, change: Callable[[Path], None], says: str
) -> None:
    site.give("one", {0: SMALL})
    site.pull()
    change(site.destination)
    site.give("one", {1: SMALL})
    before = contents(site.destination)
    with pytest.raises(UsageError, match=says):
        site.pull(free=True)
    refused = site.inv_pull(clone, "--run", "trial")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 2)
    assert contents(site.destination) == before


def test_freeing_into_a_second_folder_is_refused(site: Site, clone: Path) -> None:
    site.give_share("one", 3)
    site.give("one", {0: SMALL, 1: SMALL})
    site.pull(free=True)
    site.give("one", {2: SMALL})
    site.to = str(site.root / "second")
    refusal = r"--free is refused: 2 records of the run 'trial' \(the first is 0\) were freed on the hosts"
    with pytest.raises(UsageError, match=refusal):
        site.pull(free=True)
    assert not Path(site.to).exists()
    assert site.pull().missing[0] == (0, 2)
    before = contents(Path(site.to))
    with pytest.raises(UsageError, match=refusal):
        site.pull(free=True)
    assert contents(Path(site.to)) == before
    assert site.run_paths("one").shard(2).exists()
    assert site.inv_pull(clone, "--run", "trial", "--free").returncode == 0
    assert not site.run_paths("one").shard(2).exists()
