"""The checker of the fault suite finds every kind of wrong record, each of which is planted here."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import xxhash

from tests.faults.checker import content_digest, examine, leftovers, truth_of

RECORDS = 4


def shard(index: int, rid: str = "first") -> bytes:
    values = bytes([index]) * 16
    header = {"__metadata__": {"rid": rid}, "hidden_states": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + values


class Site:
    """Return a destination with records 0 and 1, and a host with records 2 and 3."""

    def __init__(self, root: Path) -> None:
        self.destination, self.host = root / "dest", root / "host" / "runs" / "trial"
        self.shards = {"dest": self.destination / "hidden_states", "host": self.host / "shards"}
        for folder in self.shards.values():
            folder.mkdir(parents=True)
        (self.destination / "roost").mkdir()
        self.sql("dest", "CREATE TABLE deliveries (idx, size_bytes, xxh3)")
        self.sql("host", "CREATE TABLE records (idx, state, size_bytes, xxh3, cause)")
        for index in range(RECORDS):
            self.put("dest" if index < 2 else "host", index)

    def sql(self, where: str, statement: str, *values: object) -> None:
        path = self.destination / "roost" / "ledger.sqlite" if where == "dest" else self.host / "ledger.sqlite"
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement, values)

    def file(self, where: str, index: int) -> Path:
        return self.shards[where] / f"hs_{index}.safetensors"

    def put(self, where: str, index: int, content: bytes | None = None) -> None:
        content = shard(index) if content is None else content
        self.file(where, index).write_bytes(content)
        about = (index, len(content), xxhash.xxh3_128_hexdigest(content))
        if where == "dest":
            self.sql("dest", "INSERT INTO deliveries VALUES (?, ?, ?)", *about)
        else:
            self.sql("host", "INSERT INTO records VALUES (?, 'done', ?, ?, NULL)", *about)

    def examine(self, planted: tuple[tuple[str, int], ...] = ()):  # type: ignore[no-untyped-def]
        truth = {index: digest(shard(index, "another try")) for index in range(RECORDS)}
        return examine(self.destination, {"h": self.host}, truth, planted)


def digest(content: bytes) -> str:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(content)
        return content_digest(Path(file.name))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_every_record_is_found_in_its_place(site: Site) -> None:
    account = site.examine()
    assert (account.delivered, account.held, account.open, account.faults) == ({0, 1}, {2, 3}, set(), [])


def test_a_record_without_a_row_is_open_and_a_record_with_a_cause_is_quarantined(site: Site) -> None:
    site.sql("host", "DELETE FROM records WHERE idx = 2")
    site.sql("host", "UPDATE records SET state = 'quarantined', cause = 'nan' WHERE idx = 3")
    account = site.examine()
    assert (account.open, account.quarantined, account.faults) == ({2}, {3: "nan"}, [])


@pytest.mark.parametrize("where", ["dest", "host"])
def test_a_changed_byte_and_a_short_file_are_corrupt(site: Site, where: str) -> None:
    index = 0 if where == "dest" else 2
    content = site.file(where, index).read_bytes()
    for damaged in (content[:-1] + b"!", content[:-1]):
        site.file(where, index).write_bytes(damaged)
        assert len(site.examine().corrupt) == 1


@pytest.mark.parametrize("where", ["dest", "host"])
def test_a_row_without_its_file_is_a_lost_record(site: Site, where: str) -> None:
    site.file(where, 1 if where == "dest" else 3).unlink()
    assert len(site.examine().lost) == 1


def test_another_record_s_states_under_a_valid_row_are_corrupt(site: Site) -> None:
    site.sql("dest", "DELETE FROM deliveries WHERE idx = 0")
    site.put("dest", 0, shard(1))
    assert site.examine().corrupt == ["the destination's record 0 differs from the undisturbed run's"]


def test_a_second_file_of_a_record_is_a_duplicate(site: Site) -> None:
    site.file("dest", 0).with_suffix(".safetensors.rz").write_bytes(shard(0))
    assert len(site.examine().duplicated) == 1


def test_a_record_that_was_freed_and_never_delivered_is_lost(site: Site) -> None:
    site.sql("host", "UPDATE records SET state = 'freed' WHERE idx = 2")
    assert site.examine().lost == ["h freed record 2, which is not at the destination"]


def test_quarantine_without_a_cause_is_a_problem(site: Site) -> None:
    site.sql("host", "UPDATE records SET state = 'quarantined' WHERE idx = 2")
    assert len(site.examine().problems) == 1


def test_a_record_that_was_damaged_on_purpose_is_open(site: Site) -> None:
    site.file("host", 2).write_bytes(b"x")
    account = site.examine(planted=(("h", 2),))
    assert (account.open, account.faults) == ({2}, [])


def test_a_shard_with_other_metadata_and_the_same_tensors_is_right(site: Site) -> None:
    assert digest(shard(1, "a")) == digest(shard(1, "b"))
    assert digest(shard(1)) != digest(shard(2))
    assert set(truth_of(site.destination)) == {0, 1}


def test_temporary_files_dumps_and_a_run_s_folder_are_reported_as_left_over(site: Site, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    (dumps / ".roost").touch()
    workdir = tmp_path / "host"
    assert leftovers(workdir, dumps, "another") == []
    (dumps / "roost.1.2.3.4.safetensors").touch()
    (workdir / ".aside-1-x").touch()
    assert len(leftovers(workdir, dumps, "trial")) == 3
