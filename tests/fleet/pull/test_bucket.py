"""A pull into an S3 bucket (moto's server on loopback): whole objects, resumed from either laptop."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from hosts.errors import HostError, UsageError
from tests.fleet.pull.conftest import MIB, OTHER_RUN, SMALL, Site

pytestmark = pytest.mark.ssh


@pytest.fixture
def bucket(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    name = f"harvest-{secrets.token_hex(4)}"
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(name)
    site.to = f"s3://{name}/it's a run"
    yield site.to
    server.stop()


def objects(bucket: str) -> dict[str, bytes]:
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    root = bucket.removeprefix("s3://")
    return {name.removeprefix(f"{root}/"): files.cat_file(name) for name in files.find(root)}


def test_records_arrive_in_the_bucket_with_their_dataset_and_ledger(site: Site, bucket: str) -> None:
    site.give("one", {0: SMALL, 1: 9 * MIB})
    site.give("two", {2: MIB})
    pulled = site.pull()
    assert all(outcome.ok for outcome in pulled.outcomes), pulled.outcomes
    found = objects(bucket)
    shards = {name: content for name, content in found.items() if name.startswith("hidden_states/")}
    assert shards == {f"hidden_states/hs_{index}.safetensors": site.records[index] for index in range(3)}
    assert {"manifest.json", "state.json", "roost/manifest.json", "roost/ledger.sqlite"} <= set(found)
    assert pulled.missing == [(3, 20)]


def test_a_second_laptop_continues_the_first_laptop_s_pull_into_a_bucket(site: Site, bucket: str) -> None:
    site.give("one", {0: MIB})
    site.pull()
    shutil.rmtree(site.root / ".roost" / "spool")
    site.give("one", {1: MIB})
    (outcome, _) = site.pull().outcomes
    assert outcome.result.present == 1
    assert outcome.result.wire_bytes == MIB


def test_an_object_that_is_missing_or_damaged_is_pulled_again(site: Site, bucket: str) -> None:
    site.give("one", {0: MIB, 1: MIB, 2: MIB})
    site.pull(free=False)
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    files.rm_file(f"{bucket}/hidden_states/hs_0.safetensors")
    files.pipe_file(f"{bucket}/hidden_states/hs_1.safetensors", bytes(MIB))
    (outcome, _) = site.pull(check=True).outcomes
    assert outcome.result.present == 1
    assert objects(bucket)["hidden_states/hs_0.safetensors"] == site.records[0]
    assert objects(bucket)["hidden_states/hs_1.safetensors"] == site.records[1]


def test_a_bucket_that_does_not_exist_is_one_sentence(site: Site, bucket: str) -> None:
    site.to = "s3://another-bucket/run"
    with pytest.raises(HostError, match="could not be"):
        site.pull()


@pytest.mark.parametrize("free", [False, True])
def test_a_pull_of_a_second_run_into_the_bucket_of_the_first_is_refused(site: Site, bucket: str, free: bool) -> None:
    site.give("one", {0: SMALL, 1: MIB})
    site.pull()
    before = objects(bucket)
    second = site.begin_second()
    with pytest.raises(UsageError, match=OTHER_RUN):
        site.pull_second(free=free)
    assert objects(bucket) == before
    assert second.shard(0).exists()


def test_a_bucket_with_shards_but_no_manifest_is_refused(site: Site, bucket: str) -> None:
    fsspec.filesystem("s3", skip_instance_cache=True).pipe_file(f"{bucket[5:]}/hidden_states/hs_0.safetensors", b"x")
    before = objects(bucket)
    with pytest.raises(UsageError, match="holds shards but does not say of which run"):
        site.pull()
    assert objects(bucket) == before


def test_freeing_into_a_bucket_is_refused_if_hosts_have_freed_records_into_a_folder(site: Site, bucket: str) -> None:
    site.give_share("one", 3)
    site.give("one", {0: SMALL, 1: SMALL})
    site.to = str(site.root / "folder")
    site.pull(free=True)
    site.give("one", {2: SMALL})
    site.to = bucket
    refusal = r"--free is refused: 2 records of the run 'trial' \(the first is 0\) were freed on the hosts"
    with pytest.raises(UsageError, match=refusal):
        site.pull(free=True)
    assert objects(bucket) == {}
    assert site.pull().missing[0] == (0, 2)
    before = objects(bucket)
    with pytest.raises(UsageError, match=refusal):
        site.pull(free=True)
    assert objects(bucket) == before
    assert site.run_paths("one").shard(2).exists()


def test_a_host_frees_the_records_that_its_bucket_holds_in_each_pull(site: Site, bucket: str) -> None:
    site.give_share("one", 2)
    site.give("one", {0: SMALL})
    site.pull(free=True)
    site.give("one", {1: SMALL})
    shutil.rmtree(site.root / ".roost" / "spool")
    site.pull(free=True)
    assert not any(site.run_paths("one").shard(index).exists() for index in range(2))
    assert objects(bucket)["hidden_states/hs_0.safetensors"] == site.records[0]
