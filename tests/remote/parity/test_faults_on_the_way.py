"""Faults between the forward pass and the shard: capture's own dumps, changed, and the collector's own look at them.

Rows go through the real admission into dumps; each fault is planted in the dumps' bytes, and their headers stay as
capture wrote them. Every record is looked at, whether it is in parity's sample or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from remote.capture import VERSION
from remote.capture.admission import Admission
from remote.capture.batch import Segment
from remote.capture.environment import Settings
from remote.capture.families import State
from remote.capture.gather import Gather
from remote.capture.place import Place
from remote.extract.dump import Expected
from remote.extract.store import store
from remote.shared.errors import RecordError
from remote.shared.shard.layout import Layout
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import register
from tests.identities import run_identity

BOUNDARIES = [2, 3, 5, 6]
AUX, FINAL = 1, 3
ROWS, HIDDEN = 24, 32
TOKENS = torch.arange(100, 100 + ROWS)
LAYOUT = Layout(ROWS, len(BOUNDARIES), HIDDEN, "BF16")
IDENTITY = run_identity(boundaries=tuple(BOUNDARIES), hidden_size=HIDDEN)


@pytest.fixture
def dumps(tmp_path: Path) -> list[Path]:
    """Capture's dumps of two records with the same number of rows, chunked prefill included."""
    place = Place(tuple(BOUNDARIES), tuple(BOUNDARIES), depth=6, part=0, parts=1, writes=True, writers=1)
    folder = tmp_path / "dumps"
    folder.mkdir()
    register(folder, "n")
    admission = Admission(Settings(folder, (2, 3, 5), "pre", 1 << 30, 1 << 20, 2), place, sglang="0", pinned=False)
    requests = [RequestId("n", index, 0, ROWS) for index in (0, 1)]
    for first, rows in ((0, 10), (10, ROWS - 10)):
        segments = [Segment(request, number * rows, first, rows) for number, request in enumerate(requests)]
        gather = Gather(segments, BOUNDARIES)
        for boundary in BOUNDARIES:
            gather.put(boundary, State(torch.randn(2 * rows, HIDDEN).bfloat16()))
        gather.close(TOKENS[first : first + rows].repeat(2))
        admission.put(gather)
    paths = [folder / f"{request}.safetensors" for request in requests]
    deadline = time.monotonic() + 30
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return paths


def collect(dump: Path, index: int) -> None:
    expected = Expected(str(RequestId("n", index, 0, ROWS)), index, TOKENS.int().numpy(), IDENTITY, "0", VERSION)
    store(dump, dump.with_name(f"hs_{index}.safetensors"), expected)


def states(dump: Path) -> np.ndarray:
    """The rows in the file, [rows, slots, hidden], to be changed."""
    return np.memmap(dump, np.uint16, "r+", LAYOUT.states_offset, (ROWS, len(BOUNDARIES), HIDDEN))


Fault = Callable[[np.ndarray, np.ndarray, int], None]


def exchanged(one: np.ndarray, other: np.ndarray, slot: int) -> None:
    one[:, slot], other[:, slot] = other[:, slot].copy(), one[:, slot].copy()


def slots_exchanged(one: np.ndarray, other: np.ndarray, slot: int) -> None:
    one[:, [slot, 0]] = one[:, [0, slot]]


def two_rows_exchanged(one: np.ndarray, other: np.ndarray, slot: int) -> None:
    one[[3, 17], slot] = one[[17, 3], slot]


def row_repeated(one: np.ndarray, other: np.ndarray, slot: int) -> None:
    one[12, slot] = one[11, slot]


def shifted(one: np.ndarray, other: np.ndarray, slot: int) -> None:
    one[:, slot] = np.roll(one[:, slot], 1, axis=0)


def stale(one: np.ndarray, other: np.ndarray, slot: int) -> None:
    one[10:, slot] = other[10:, slot]


def one_bit(one: np.ndarray, other: np.ndarray, slot: int) -> None:
    one[5, slot, 9] ^= 1


def two_values_exchanged(one: np.ndarray, other: np.ndarray, slot: int) -> None:
    one[5, slot, [2, 30]] = one[5, slot, [30, 2]]


FAULTS = {
    "rows of two records exchanged": exchanged,
    "two slots exchanged": slots_exchanged,
    "two rows exchanged": two_rows_exchanged,
    "one row repeated": row_repeated,
    "rows shifted by one": shifted,
    "rows of another record from a chunk on": stale,
    "one bit": one_bit,
    "two values of a row exchanged": two_values_exchanged,
}


def test_dumps_as_capture_wrote_them_are_collected(dumps: list[Path]) -> None:
    for index, dump in enumerate(dumps):
        collect(dump, index)
        assert dump.with_name(f"hs_{index}.safetensors").stat().st_size == dump.stat().st_size


@pytest.mark.parametrize("slot", [AUX, FINAL], ids=["aux", "final"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_collector_sees_the_fault_in_every_record_and_slot(dumps: list[Path], fault: str, slot: int) -> None:
    before = [states(dump).copy() for dump in dumps]
    FAULTS[fault](states(dumps[0]), states(dumps[1]), slot)
    for index, dump in enumerate(dumps):
        wrong = np.flatnonzero((states(dump) != before[index]).any(axis=(0, 2)))
        if not len(wrong):
            collect(dump, index)
            continue
        with pytest.raises(RecordError, match=f"The rows of boundary {BOUNDARIES[wrong[0]]} are not those"):
            collect(dump, index)
        assert not list(dump.parent.glob("*hs_*"))


def test_whole_dumps_that_were_exchanged_are_told_by_their_ids_and_by_their_rows(dumps: list[Path]) -> None:
    contents = [dump.read_bytes() for dump in dumps]
    dumps[0].write_bytes(contents[1])
    with pytest.raises(RecordError, match="The dump's rid is"):
        collect(dumps[0], 0)
    dumps[0].write_bytes(contents[0][: LAYOUT.states_offset] + contents[1][LAYOUT.states_offset :])
    with pytest.raises(RecordError, match="The rows of boundary 2 are not those"):
        collect(dumps[0], 0)
