"""`inv pull` against a real sshd: what arrives is whole and verified, and the next call does only what is left."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from hosts.inventory.kept import Kept
from hosts.plan.plan import PlannedShare, load, save
from remote.shared.messages.codec import UnpackRequest, UnpackResult
from remote.shared.messages.transfer import DestinationManifest, Limits
from remote.shared.transfer import tuning
from remote.shared.transfer.ledger import DestinationLedger
from remote.shared.transfer.origin import Asked, Offer
from tests.fleet.pull.conftest import MIB, RUN, SMALL, Site
from tests.shards import shard, shard_of

pytestmark = pytest.mark.ssh


def test_records_of_every_host_arrive_with_their_dataset_and_ledger(site: Site) -> None:
    site.give("one", {0: SMALL, 1: 9 * MIB + 5, 2: MIB})
    site.give("two", {3: 4 * MIB, 4: SMALL})
    pulled = site.pull()
    assert all(outcome.ok for outcome in pulled.outcomes), pulled.outcomes
    assert site.delivered() == site.records
    assert pulled.missing == [(5, 20)]
    assert (site.destination / "state.json").exists()
    manifest = DestinationManifest.model_validate_json((site.destination / "roost/manifest.json").read_bytes())
    assert (manifest.delivered, manifest.records, manifest.hosts) == (5, 20, {"one": 3, "two": 2})
    with DestinationLedger(site.destination / "roost/ledger.sqlite") as ledger:
        assert [(row.index, row.host) for row in ledger.rows()] == [
            (0, "one"), (1, "one"), (2, "one"), (3, "two"), (4, "two")
        ]  # fmt: skip
    assert list((site.destination / "roost/parts").iterdir()) == []


def test_a_second_pull_brings_only_what_is_new(site: Site) -> None:
    site.give("one", {0: MIB, 1: MIB})
    site.pull()
    site.give("one", {2: SMALL})
    (outcome, _) = site.pull().outcomes
    tally = outcome.result
    assert (outcome.result.present, tally.wire_bytes) == (2, SMALL)
    assert site.delivered() == site.records


def test_a_partial_file_is_continued_and_a_wrong_byte_in_it_is_repaired(site: Site) -> None:
    site.give("one", {0: 30 * MIB})
    parts = site.destination / "roost" / "parts"
    parts.mkdir(parents=True)
    left = bytearray(site.records[0][: 21 * MIB])
    left[5 * MIB] ^= 1
    (parts / "hs_0.safetensors.part").write_bytes(left)
    (outcome, _) = site.pull().outcomes
    tally = outcome.result
    assert site.delivered() == site.records
    assert tally.kept_bytes == 16 * MIB
    assert tally.wire_bytes == 14 * MIB


def test_a_file_without_a_ledger_row_is_compared_and_adopted(site: Site) -> None:
    site.give("one", {0: 9 * MIB})
    site.pull()
    (site.destination / "roost" / "ledger.sqlite").unlink()
    (outcome, _) = site.pull().outcomes
    tally = outcome.result
    assert (tally.delivered, tally.wire_bytes) == (1, 0)
    assert site.delivered() == site.records


def test_a_record_whose_bytes_differ_from_the_hosts_ledger_is_not_delivered(site: Site) -> None:
    site.give("one", {0: 5 * MIB, 1: MIB})
    shard = site.run_paths("one").shard(0)
    content = bytearray(shard.read_bytes())
    content[4 * MIB + 7] ^= 1
    shard.write_bytes(content)
    (outcome, _) = site.pull().outcomes
    tally = outcome.result
    assert "differ from the host's own ledger" in tally.failed[0]
    assert list(site.delivered()) == [1]


def test_a_record_of_another_size_than_the_ledger_says_is_refused_by_name(site: Site) -> None:
    site.give("one", {0: MIB, 1: MIB})
    shard = site.run_paths("one").shard(0)
    shard.write_bytes(shard.read_bytes() + b"x")
    (outcome, _) = site.pull().outcomes
    tally = outcome.result
    assert tally.failed == {0: f"hs_0.safetensors is {MIB + 1} bytes long there, its ledger says {MIB}"}
    assert list(site.delivered()) == [1]


def test_only_the_records_of_a_host_without_an_sshd_are_missing(site: Site) -> None:
    site.give("one", {0: MIB})
    site.change("two", ssh_port=1, connect_timeout=5)
    one, two = site.pull().outcomes
    assert one.ok
    assert two.error is not None
    assert two.error.kind == "unreachable"
    assert site.delivered() == site.records


def test_free_deletes_on_the_host_only_records_that_are_durable_here(site: Site) -> None:
    site.give("one", {0: MIB, 1: MIB})
    broken = site.run_paths("one").shard(1)
    broken.write_bytes(bytes(MIB))
    (outcome, _) = site.pull(free=True).outcomes
    assert outcome.result.freed == 1
    assert [path.name for path in site.run_paths("one").shards.iterdir()] == [broken.name]
    again = site.pull(free=True).outcomes[0]
    assert again.result.offered == 1
    assert list(site.delivered()) == [0]


def test_records_that_an_interrupted_pull_delivered_are_freed_by_the_next_pull(site: Site, clone: Path) -> None:
    """A delivered file is read again first; a damaged one is named, fetched again and then freed as well."""
    site.give("one", {0: MIB, 1: 9 * MIB})
    site.pull()
    damaged = site.destination / "hidden_states" / "hs_1.safetensors"
    with damaged.open("r+b") as stream:
        stream.seek(5 * MIB)
        stream.write(b"wrong")
    done = site.inv_pull(clone, "--free")
    assert done.returncode == 0, done.stderr
    assert "one: record 1 was damaged at the destination and was pulled again" in done.stderr
    assert "2 freed there" in done.stdout
    assert list(site.run_paths("one").shards.iterdir()) == []
    assert site.delivered() == site.records


def test_a_destination_of_another_dataset_is_refused(site: Site) -> None:
    site.pull()
    manifest = Path(site.root / "data" / "manifest.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"digest": "e"}))
    with pytest.raises(Exception, match="holds the dataset e, but the run 'trial' was planned for d"):
        site.pull()


def state_shard(rows: int) -> bytes:
    """A record whose values compress as real states do."""
    scale = np.exp(np.random.default_rng(0).normal(0, 2, 4 * 512))
    values = (np.random.default_rng(rows).normal(0, 1, (rows, 4 * 512)) * scale).astype(np.float32)
    return shard_of(rows, (values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def test_states_that_are_sent_compressed_arrive_unchanged(site: Site) -> None:
    site.put("one", {0: state_shard(9000), 1: state_shard(10), 2: shard(SMALL)})
    (outcome, _) = site.pull(limits=Limits(compress="always")).outcomes
    tally = outcome.result
    assert site.delivered() == site.records
    assert tally.plain_bytes == sum(map(len, site.records.values()))
    assert tally.wire_bytes < 0.7 * tally.plain_bytes


def test_shards_compressed_on_the_host_are_pulled_as_their_plain_bytes(site: Site) -> None:
    site.put("one", {0: state_shard(9000), 1: state_shard(10)})
    site.compress("one", *site.records)
    (outcome, _) = site.pull(free=True).outcomes
    assert site.delivered() == site.records
    assert outcome.result.freed == 2
    assert list(site.run_paths("one").shards.iterdir()) == []


def test_a_shard_that_is_compressed_while_it_is_pulled_arrives_in_the_same_pull(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put("one", {0: state_shard(50), 1: state_shard(10)})

    offers = Asked.offers

    def then_compress(self: Asked, after: int) -> Offer:
        found = offers(self, after)
        if self.source.name == "one" and site.run_paths("one").shard(1).exists():
            site.compress("one", 1)
        return found

    monkeypatch.setattr(Asked, "offers", then_compress)
    (outcome, _) = site.pull(free=True).outcomes
    tally = outcome.result
    assert (tally.delivered, tally.failed, outcome.result.freed) == (2, {}, 2)
    assert site.delivered() == site.records


def test_a_host_without_a_share_is_no_failure_and_the_output_names_the_run(site: Site, clone: Path) -> None:
    site.give("one", {0: SMALL})
    shutil.rmtree(site.run_paths("two").root)
    done = site.inv_pull(clone)
    assert done.returncode == 0, done.stderr
    assert "two: no share in this run" in done.stdout
    assert f"Using the run planned last: {RUN}." in done.stderr
    assert site.inv_pull(clone, "--run", RUN, "--dry-run").returncode == 0


def test_a_host_that_does_not_hold_its_planned_share_is_a_failure(site: Site) -> None:
    path = Kept(site.root).plan(RUN)
    share = PlannedShare(
        host="two", ranges=[(0, 1)], records=1, tokens=1, longest=1, epoch=1, context_length=9, weight=1
    )
    save(load(path).model_copy(update={"shares": [share]}), path)
    shutil.rmtree(site.run_paths("two").root)
    _, two = site.pull().outcomes
    assert two.error is not None
    assert "There is no run" in str(two.error)


def test_freeing_is_refused_if_the_destination_cannot_fsync_but_pulling_is_not(site: Site, clone: Path) -> None:
    site.give("one", {0: MIB, 1: SMALL})
    without = (sys.executable, "-m", "tests.fleet.pull.no_fsync")
    refused = site.inv_pull(clone, "--free", under=without)
    assert refused.returncode == 1
    assert "cannot fsync" in refused.stderr
    assert site.delivered() == {}
    pulled = site.inv_pull(clone, under=without)
    assert pulled.returncode == 0, pulled.stderr
    assert site.delivered() == site.records
    with DestinationLedger(site.destination / "roost/ledger.sqlite") as ledger:
        assert [row.durable for row in ledger.rows()] == [False, False]
    assert site.pull(free=True).outcomes[0].result.freed == 0
    assert len(list(site.run_paths("one").shards.iterdir())) == 2


def test_records_kept_compressed_here_are_delivered_once_and_unpack_to_their_bytes(site: Site) -> None:
    site.put("one", {0: state_shard(9000), 1: shard(SMALL)})
    site.pull(store="compressed")
    (outcome, _) = site.pull(store="compressed").outcomes
    assert outcome.result.present == 2
    folder = site.destination / "hidden_states"
    assert sorted(path.name for path in folder.iterdir()) == ["hs_0.safetensors.rz", "hs_1.safetensors.rz"]
    for fleet in site.fleet():
        request = UnpackRequest(paths=[str(folder)], remove=True)
        result = fleet.local.call("unpack", request, UnpackResult)
    assert (result.unpacked, result.failed) == (2, {})
    assert site.delivered() == site.records


def test_compression_is_chosen_if_the_wire_is_the_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MEASURE_SECONDS", 0.4)
    monkeypatch.setattr(tuning, "TRIAL_BYTES", 24 * MIB)
    site.put("one", dict.fromkeys(range(4), state_shard(6000)))
    (outcome, _) = site.pull(limits=Limits(streams=2, bytes_per_second=8e6, compress="auto")).outcomes
    tally = outcome.result
    assert tally.compressed
    assert tally.wire_bytes < 0.95 * tally.plain_bytes
    assert site.delivered() == site.records
