"""A canary whose capture is missing, short, refused or wrong keeps a server from counting as ready."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from remote.servers.probing import canary
from remote.shared.errors import HostError
from remote.shared.messages.server import CaptureState

BOUNDARIES = [1, 2]
ROWS = len(canary.TOKENS)
Writer = Callable[[Path, str], None]


def states(slots: int, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((rows, slots, 8)).astype(np.float32)


def write_dump(
    folder: Path, rid: str, *, suffix: str = "", slots: slice = slice(0, 2), rows: int = ROWS, skew: float = 0.0
) -> None:
    tensors = {
        "hidden_states": np.ascontiguousarray(states(2)[:rows, slots] + np.float32(skew)),
        "token_ids": np.array(canary.TOKENS)[:rows],
    }
    metadata = {"boundaries": json.dumps(BOUNDARIES[slots]), "final": "pre"}
    save_file(tensors, folder / f"{rid}{suffix}.safetensors", metadata)


def write_hook(folder: Path, rid: str) -> None:
    tensors = {"boundaries": states(2), "token_ids": np.array(canary.TOKENS)}
    save_file(tensors, folder / f"{rid}.canary.safetensors", {"boundaries": json.dumps(BOUNDARIES)})


def checked(folder: Path, *writers: Writer) -> str:
    capture = CaptureState(
        attach="plugin", payload="p", version="1", boundaries=BOUNDARIES, final="pre", dump_dir=str(folder)
    )

    async def send(tokens: list[int], rid: str) -> None:
        assert tokens == canary.TOKENS
        for write in writers:
            write(folder, rid)

    return asyncio.run(canary.capture_canary(send, capture))


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_slot_that_is_not_its_boundary_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="slot 0 should be boundary 1"):
        checked(tmp_path, write_hook, lambda folder, rid: write_dump(folder, rid, skew=0.5))
    assert left(tmp_path) == []


def test_missing_rows_are_counted(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=f"1 rows and 2 slots where {ROWS} and 2"):
        checked(tmp_path, lambda folder, rid: write_dump(folder, rid, rows=1))


def test_a_capture_equal_to_what_its_hook_saw_passes_in_parts_too_and_is_removed(tmp_path: Path) -> None:
    def part(number: int) -> Writer:
        slots = slice(number, number + 1)
        return lambda folder, rid: write_dump(folder, rid, suffix=f".stage{number}of2", slots=slots)

    assert "2 slots equal their boundaries within 0.0e+00" in checked(tmp_path, write_hook, part(0), part(1))
    assert left(tmp_path) == []


def test_a_canary_whose_own_hook_saw_nothing_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="its own hook wrote nothing"):
        checked(tmp_path, write_dump)


def test_a_refusal_by_capture_is_quoted(tmp_path: Path) -> None:
    def refuse(folder: Path, rid: str) -> None:
        (folder / f"{rid}.error.json").write_text(json.dumps({"rid": rid, "cause": "rows 3 to 5 never came"}))

    with pytest.raises(HostError, match="rows 3 to 5 never came"):
        checked(tmp_path, refuse)


def test_a_server_without_capture_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "DUMP_SECONDS", 0.0)
    with pytest.raises(HostError, match="wrote no capture of the canary"):
        checked(tmp_path)
