"""Parts of a record from pipeline stages become the record, in the configured order of slots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from remote.capture.stages import Part, join
from remote.shared.errors import RecordError
from remote.shared.shard.layout import Layout

RID = "roost.n.7.0.3"
ROWS, HIDDEN = 3, 4
ORDER = [5, 1, 6]


def part(folder: Path, number: int, boundaries: list[int], **about: str) -> Path:
    path = folder / f"{RID}.stage{number}of2.safetensors"
    states = torch.stack([torch.full((ROWS, HIDDEN), float(k)) + torch.arange(ROWS)[:, None] for k in boundaries], 1)
    metadata = {
        "rid": RID,
        "rows": str(ROWS),
        "boundaries": json.dumps(boundaries),
        "record_boundaries": json.dumps(ORDER),
        "mean_norm": json.dumps([float(k) for k in boundaries]),
        "max_norm": json.dumps([10.0 * k for k in boundaries]),
        "finite": "true",
        **about,
    }
    header = Layout(ROWS, len(boundaries), HIDDEN, "F32").header(metadata)
    path.write_bytes(header + torch.arange(ROWS).numpy().tobytes() + states.numpy().tobytes())
    return path


def test_the_slots_come_in_the_records_order(tmp_path: Path) -> None:
    out = tmp_path / f"{RID}.safetensors"
    join([part(tmp_path, 0, [1]), part(tmp_path, 1, [5, 6])], out)
    whole = load_file(out)
    assert whole["hidden_states"][1, :, 0].tolist() == [6.0, 2.0, 7.0]
    assert whole["token_ids"].tolist() == [0, 1, 2]
    with safe_open(out, framework="pt") as file:
        said = file.metadata()
    assert (said["boundaries"], said["mean_norm"], said["max_norm"]) == (
        "[5, 1, 6]",
        "[5.0, 1.0, 6.0]",
        "[50.0, 10.0, 60.0]",
    )


def test_parts_of_two_attempts_are_not_joined(tmp_path: Path) -> None:
    parts = [part(tmp_path, 0, [1]), part(tmp_path, 1, [5, 6], token_digest="other")]
    with pytest.raises(RecordError, match="has token_digest 'other'"):
        join(parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_boundary_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds boundary 5"):
        join([part(tmp_path, 0, [1]), part(tmp_path, 1, [6])], tmp_path / "out")


def test_a_name_says_which_parts_belong_together(tmp_path: Path) -> None:
    found = Part.of(tmp_path / f"{RID}.stage1of2.safetensors")
    assert found == Part(RID, 1, 2)
    assert found is not None
    assert [path.name for path in found.siblings(tmp_path)] == [f"{RID}.stage{k}of2.safetensors" for k in (0, 1)]
    assert Part.of(tmp_path / f"{RID}.safetensors") is None
