"""Each fault that has been seen to go unnoticed elsewhere, planted in an auxiliary slot and in the final slot.

The true states are transformers', so the checks are judged, not capture. A fault is planted as a capture with that
fault would write it; the canary's own hook, which shares no code with capture, has the truth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from remote.parity.bands import LEARN, NormBand
from remote.parity.canary import check_canary
from remote.parity.head import Head, load_head
from remote.parity.logprobs import ServerLogprobs, deviations, rms_norm
from remote.shared.errors import HostError
from remote.shared.shard.layout import Layout

BOUNDARIES = [2, 3, 5, 6]
AUX, FINAL = 1, 3
ROWS = 24


@dataclass
class Truth:
    """A prompt, all its boundaries [n + 1, rows, hidden], its normed final state, and a neighbour of equal length."""

    tokens: list[int]
    states: torch.Tensor
    normed: torch.Tensor
    neighbour: torch.Tensor
    server: ServerLogprobs
    head: Head

    def record(self) -> torch.Tensor:
        return torch.stack([self.states[k] for k in BOUNDARIES], dim=1)


@pytest.fixture(scope="module")
def truth(reference_of: Callable[..., Any], prompts_of: Callable[..., Any], tiny_model_path: Path) -> Truth:
    reference = reference_of("deepseek_v3")
    tokens, neighbour = prompts_of(40, ROWS, ROWS)
    logprobs = reference.logprobs(tokens)
    following = [*tokens[1:], int(logprobs[-1].argmax())]
    answered = ServerLogprobs(
        [float(logprobs[row, token]) for row, token in enumerate(following)],
        following,
        logprobs.argmax(-1).tolist(),
    )
    states = reference.boundaries(tokens)
    return Truth(
        tokens, states, reference.normed(tokens), reference.boundaries(neighbour), answered, load_head(tiny_model_path)
    )


def normed(truth: Truth, rows: torch.Tensor) -> torch.Tensor:
    return rms_norm(rows, truth.head.norm_weight, truth.head.eps, torch.float32)


def zeros_in_the_middle(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows[:10], torch.zeros_like(rows[10:11]), rows[11:]])


Fault = Callable[[Truth, int, torch.Tensor], torch.Tensor]
FAULTS: dict[str, Fault] = {
    "wrong layer": lambda truth, k, rows: truth.states[1],
    "one boundary early": lambda truth, k, rows: truth.states[k - 1],
    "post-norm for pre-norm": lambda truth, k, rows: normed(truth, rows),
    "double norm": lambda truth, k, rows: normed(truth, normed(truth, rows)),
    "rows shifted by one": lambda truth, k, rows: rows.roll(1, 0),
    "zeros in a middle row": lambda truth, k, rows: zeros_in_the_middle(rows),
    "a neighbour's rows": lambda truth, k, rows: truth.neighbour[k],
    "a stale buffer": lambda truth, k, rows: torch.cat([rows[:12], truth.neighbour[k][12:]]),
}


def plant(truth: Truth, slot: int, fault: str) -> torch.Tensor:
    record = truth.record()
    record[:, slot] = FAULTS[fault](truth, BOUNDARIES[slot], record[:, slot].clone())
    return record


def write_dump(path: Path, states: torch.Tensor, tokens: Sequence[int], final: str = "pre") -> Path:
    layout = Layout(len(tokens), states.shape[1], states.shape[2], "F32")
    header = layout.header({"boundaries": json.dumps(BOUNDARIES), "final": final})
    ids = torch.tensor(list(tokens), dtype=torch.int64)
    path.write_bytes(header + ids.numpy().tobytes() + states.contiguous().numpy().tobytes())
    return path


@pytest.fixture(scope="module")
def listened(truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("canary") / "x.canary.safetensors"
    tensors = {
        "boundaries": truth.states.transpose(0, 1).contiguous(),
        "token_ids": torch.tensor(truth.tokens),
        "normed": truth.normed.contiguous(),
    }
    save_file(tensors, path, {"boundaries": json.dumps(list(range(7)))})
    return path


def logprobs_of(truth: Truth, rows: torch.Tensor, final: Any = "pre") -> Any:
    head = truth.head
    return deviations(
        rows, truth.tokens, truth.server, head.norm_weight, head.eps, head.lm_head, head.dtype, final=final
    ).summary()


def test_a_correct_record_passes_both_checks(truth: Truth, listened: Path, tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "d.safetensors", truth.record(), truth.tokens)
    assert check_canary(dump, [listened]).passed
    found = logprobs_of(truth, truth.record()[:, FINAL])
    assert found.passed
    assert (found.rows, found.top1) == (ROWS, 1.0)
    assert logprobs_of(truth, truth.normed, final="post").passed


@pytest.mark.parametrize("slot", [AUX, FINAL], ids=["aux", "final"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_canary_catches_the_fault(truth: Truth, listened: Path, tmp_path: Path, fault: str, slot: int) -> None:
    dump = write_dump(tmp_path / "d.safetensors", plant(truth, slot, fault), truth.tokens)
    checked = check_canary(dump, [listened])
    assert [check.slot for check in checked.slots if not check.passed] == [slot]
    with pytest.raises(HostError, match=f"slot {slot} should be boundary {BOUNDARIES[slot]}"):
        checked.require()


@pytest.mark.parametrize("fault", FAULTS)
def test_the_logprobs_catch_the_fault_in_the_final_slot(truth: Truth, fault: str) -> None:
    found = logprobs_of(truth, plant(truth, FINAL, fault)[:, FINAL])
    # RMSNorm of a normed row is nearly that row: what a second norm changes is the weight, applied twice.
    assert not found.passed, str(found)


def test_a_second_norm_on_a_normed_slot_is_caught_by_both(truth: Truth, listened: Path, tmp_path: Path) -> None:
    record = truth.record()
    record[:, FINAL] = normed(truth, truth.normed)
    dump = write_dump(tmp_path / "d.safetensors", record, truth.tokens, final="post")
    assert not check_canary(dump, [listened]).passed
    assert not logprobs_of(truth, record[:, FINAL], final="post").passed
    record[:, FINAL] = truth.normed
    assert check_canary(write_dump(tmp_path / "e.safetensors", record, truth.tokens, "post"), [listened]).passed


def test_the_canary_names_the_boundary_that_it_found(truth: Truth, listened: Path, tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "d.safetensors", plant(truth, AUX, "one boundary early"), truth.tokens)
    with pytest.raises(HostError, match=r"slot 1 should be boundary 3 .* closest to boundary 2"):
        check_canary(dump, [listened]).require()
    dump = write_dump(tmp_path / "e.safetensors", plant(truth, FINAL, "post-norm for pre-norm"), truth.tokens)
    with pytest.raises(HostError, match="closest to the state after the last norm"):
        check_canary(dump, [listened]).require()


def test_the_logprobs_do_not_find_faults_in_auxiliary_slots(truth: Truth) -> None:
    """One record's auxiliary slot alone: only a canary that goes by at that time sees it."""
    for fault in FAULTS:
        assert logprobs_of(truth, plant(truth, AUX, fault)[:, FINAL]).passed


def norms(record: torch.Tensor) -> tuple[list[float], list[float]]:
    lengths = record.norm(dim=-1)
    return lengths.mean(dim=0).tolist(), lengths.amax(dim=0).tolist()


SEEN_BY_BANDS = {"wrong layer", "post-norm for pre-norm", "double norm"}


@pytest.mark.parametrize("slot", [AUX, FINAL], ids=["aux", "final"])
def test_the_norm_bands_find_wrong_layers_and_norms_and_no_other_fault(
    truth: Truth, reference_of: Callable[..., Any], prompts_of: Callable[..., Any], slot: int
) -> None:
    band = NormBand(BOUNDARIES)
    for prompt in prompts_of(41, *[ROWS] * LEARN):
        states = reference_of("deepseek_v3").boundaries(prompt)
        assert band.observe(*norms(torch.stack([states[k] for k in BOUNDARIES], dim=1))) == []
    assert band.observe(*norms(truth.record())) == []
    flagged = {fault for fault in FAULTS if band.observe(*norms(plant(truth, slot, fault)))}
    assert flagged >= SEEN_BY_BANDS
    assert not flagged & {"rows shifted by one", "a neighbour's rows", "a stale buffer"}
