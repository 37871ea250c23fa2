"""A host that lies while a folder is pushed to it, or about what it has: one sentence, and nothing taken over."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.bench.results import BenchResults
from hosts.commands import logs as logging
from hosts.commands import verify as verifying
from hosts.commands.prepare import inspect
from hosts.errors import ConnectionLostError, HostError, ProtocolError, RoostError, UsageError
from hosts.fleet import Fleet
from hosts.inventory.model import Host, Inventory
from hosts.transport import push as pushing
from hosts.transport.backend import Backend
from hosts.transport.push import push
from remote.shared.messages.bench import BenchResult
from remote.shared.messages.dataset import InspectedRecord, InspectRequest
from remote.shared.messages.extract import ShardBatch, ShardRow
from remote.shared.messages.logs import LogsRequest
from remote.shared.messages.transfer import Source
from remote.shared.messages.verify import Fault, VerifyRequest
from remote.shared.transfer.bounds import Bounds
from remote.shared.transfer.origin import Asked
from tests.hostile import Maker, examples, json_values, objects_like, values_of
from tests.hosts.transport.test_hostile_answers import Script, Scripted, line
from tests.shards import IDENTITY, ROW_BYTES

LENGTHS = [9, 8, 7, 6, 5]
BOUNDS = Bounds(IDENTITY, len(LENGTHS), LENGTHS)
GOOD: dict[str, Any] = {"index": 3, "rows": 6, "size_bytes": 6 * ROW_BYTES + 4096, "xxh3": "0" * 32, "epoch": 1}
RESULT = {"rows": 1, "cursor": 1, "counts": {}, "status": "complete"}


class Receiver(Backend):
    """Answers every push with the same bytes."""

    def __init__(self, *said: bytes) -> None:
        super().__init__(Host(name="h"))
        self._said = said

    def open(self, argv: list[str]) -> Script:
        process = Script(list(self._said))
        process.greeted = True
        return process

    def close(self) -> None:
        return


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"content")
    return tmp_path / "folder"


answers = st.one_of(
    st.binary(max_size=50),
    json_values().map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries(
        {"state": st.sampled_from(["want", "have", "error"])},
        optional={"prefixes": st.one_of(json_values(), st.lists(json_values(), min_size=1, max_size=1))},
    ).map(lambda value: json.dumps(value).encode()),
)


@examples(75)
@given(said=st.lists(answers, max_size=3))
def test_any_answer_of_a_receiver_is_accepted_or_one_sentence(folder: Path, said: list[bytes]) -> None:
    try:
        done = push(Receiver(*(one + b"\n" for one in said)), folder, "/there")
    except RoostError:
        return
    assert done.sent_bytes <= done.total_bytes == 7


def test_endless_output_of_a_receiver_is_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "LINE_LIMIT_BYTES", 100_000)
    with pytest.raises(ProtocolError, match="a line of over"):
        push(Receiver(*[b"x" * 65536] * 10), folder, "/there")
    with pytest.raises(ProtocolError, match="over 1 MiB"):
        push(Receiver(*[b"noise\n" * 10_000] * 30), folder, "/there")


def test_a_deeply_nested_answer_is_ignored_as_noise(folder: Path) -> None:
    with pytest.raises(ConnectionLostError):
        push(Receiver(b"[" * 100_000 + b"\n"), folder, "/there")


def test_a_receiver_s_endless_sentence_is_cut(folder: Path) -> None:
    said = json.dumps({"state": "error", "message": "x" * 100_000}).encode() + b"\n"
    with pytest.raises(HostError) as caught:
        push(Receiver(said), folder, "/there")
    assert len(caught.value.message) <= 4000


def offered(*batches: dict[str, Any]) -> list[ShardRow]:
    said = [line({"type": "item", "value": batch}) for batch in batches]
    source = Source(name="h", sender=[], codec_sender=[], root="")
    scripted = Scripted(*said, line({"type": "result", "value": RESULT}))
    return Asked(source, BOUNDS, scripted.call).offers(0).rows


@examples(100)
@given(objects_like(ShardBatch))
def test_only_records_of_the_run_are_offered(batch: dict[str, Any]) -> None:
    try:
        rows = offered(batch)
    except HostError:
        return
    assert all(row.rows == LENGTHS[row.index] and row.size_bytes < 2 << 20 for row in rows)


@pytest.mark.parametrize(
    "lie",
    [{"index": -1}, {"index": len(LENGTHS)}, {"index": 1 << 40}]
    + [{"rows": rows} for rows in (0, 10, 1 << 62)]
    + [{"size_bytes": size} for size in (0, -5, GOOD["rows"] * ROW_BYTES, 2 << 30)]
    + [{"xxh3": text} for text in ("../../../etc/passwd", "0" * 31, "0" * 33, "Z" * 32, "0" * 32 + "\n")],
    ids=str,
)
def test_a_row_that_cannot_be_a_record_of_the_run_is_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(HostError, match="an impossible record") as caught:
        offered({"rows": [{**GOOD, **lie}], "cursor": 1})
    assert caught.value.kind == "protocol"


def test_a_listing_without_an_end_is_refused() -> None:
    assert len(offered({"rows": [GOOD], "cursor": 1})) == 1
    with pytest.raises(HostError, match="offered twice"):
        offered(*[{"rows": [GOOD], "cursor": 1}] * 2)


def test_log_lines_before_their_place_is_known_are_refused(tmp_path: Path) -> None:
    position = {"source": {}, "file": "f", "inode": 1, "head": "", "offset": 1}
    value = {"type": "lines", "source": {}, "file": "f", "lines": ["x"], "end": position}
    host = Host(name="h")
    fleet = Fleet(Inventory(path=tmp_path / "i", hosts={"h": host}, local=Host(name="local")), [host])
    fleet._backends["h"] = Scripted(line({"type": "item", "value": value}))
    (outcome,) = logging.logs(fleet, LogsRequest(), lambda *_: None, lambda *_: None)
    assert isinstance(outcome.error, ProtocolError)


def test_endless_records_are_refused_if_one_was_asked_for() -> None:
    value = Maker(0).valid(InspectedRecord).model_dump(mode="json")
    said = [line({"type": "item", "value": value})] * 2
    with pytest.raises(ProtocolError, match="The host sent more than the 1 requested records"):
        inspect(Scripted(*said), InspectRequest(dataset="/d", indices=[0]))


def test_only_the_first_of_endless_faults_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "MOST_FAULTS", 3)
    kept: list[Fault] = []
    said = [line({"type": "item", "value": {"kind": "stranger", "message": "m"}})] * 50
    with pytest.raises(ProtocolError):
        verifying.verify_folder(Scripted(*said), VerifyRequest(folder="/f"), lambda _, f: kept.append(f), print)
    assert len(kept) == 3


@examples(60)
@given(values_of(BenchResult))
def test_a_measurement_of_any_values_is_kept_inside_its_folder_or_refused(
    tmp_path_factory: pytest.TempPathFactory, result: BenchResult
) -> None:
    root = tmp_path_factory.mktemp("results")
    (root / "inside").mkdir()
    result.host, result.label = "gpu1", ""
    with contextlib.suppress(UsageError):
        BenchResults(root / "inside").save(result)
    found = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    assert all(path.parts[:2] == ("inside", "gpu1") for path in found)
