"""Is what is captured right on this GPU, in bf16? A small model with real weights, chunked and batched prompts.

Used by `benchmarks.capture_gpu`. Beside what a right capture shows stands what each planted fault shows, so that
the tolerances can be seen to tell them apart.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from benchmarks.gpu.models import TINY, write_config, write_weights
from benchmarks.gpu.prompts import await_file, prompt
from benchmarks.gpu.server import READY_SECONDS, GpuServer
from remote.parity.canary import TOLERANCES, check_canary
from remote.parity.head import Head, load_head
from remote.parity.logprobs import ServerLogprobs, deviations, rms_norm
from remote.shared.messages.server import CaptureSpec
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import register

DEPTH = TINY["num_hidden_layers"]
CANARY_LENGTHS = [64, 64, 1500, 1500]
LENGTHS = [17, 700, 1024, 1025, 2500, 333, 700]
FLAGS = "--mem-fraction-static 0.85 --max-total-tokens 65536 --context-length 8192 --chunked-prefill-size 1024"
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)

Fault = Callable[[torch.Tensor, int, torch.Tensor, Head], torch.Tensor]
"""From all boundaries of a record [rows, boundaries, hidden], a boundary, a neighbour's [rows, boundaries, hidden]."""


def _normed(rows: torch.Tensor, head: Head) -> torch.Tensor:
    return rms_norm(rows, head.norm_weight, head.eps, head.dtype)


def _zeroed(rows: torch.Tensor) -> torch.Tensor:
    rows = rows.clone()
    rows[len(rows) // 2] = 0
    return rows


FAULTS: dict[str, Fault] = {
    "wrong layer": lambda all_, k, other, head: all_[:, (k + 3) % (DEPTH + 1)],
    "one boundary early": lambda all_, k, other, head: all_[:, k - 1],
    "post-norm for pre-norm": lambda all_, k, other, head: _normed(all_[:, k], head),
    "double norm": lambda all_, k, other, head: _normed(_normed(all_[:, k], head), head),
    "rows shifted by one": lambda all_, k, other, head: all_[:, k].roll(1, 0),
    "zeros in a middle row": lambda all_, k, other, head: _zeroed(all_[:, k]),
    "a neighbour's rows": lambda all_, k, other, head: other[:, k],
    "a stale buffer": lambda all_, k, other, head: torch.cat(
        [all_[: len(all_) // 2, k], other[len(all_) // 2 :, k]],
    ),
}


@dataclass(frozen=True)
class Answered:
    """One captured record, at all boundaries, and what the server said about it."""

    tokens: list[int]
    states: torch.Tensor
    """bf16 [rows, boundaries, hidden]"""
    said: ServerLogprobs


def parity(root: Path, logs: Path, gpus: str, ranks: str) -> dict[str, Any]:
    """Serve the small model on these GPUs and compare; raises RuntimeError where it does not come up."""
    model = write_config(root / "models" / "tiny", TINY)
    write_weights(model, TINY, "cuda")
    directory = Path("/dev/shm/roost-tiny")
    shutil.rmtree(directory, ignore_errors=True)
    spec = CaptureSpec(layers=list(range(DEPTH)), dump_dir=str(directory), high_water_bytes=8 << 30)
    server = GpuServer(root, model, 30011, spec, logs / "tiny.log", f"{FLAGS} {ranks}".split(), gpus)
    try:
        server.wait(READY_SECONDS)
        for nonce in ("gpu", "lp"):
            register(server.dumps, nonce)
        head = load_head(model)
        return {"canary": canary(server, head), "logprobs": logprobs(answers(server), head)}
    finally:
        server.stop()


def canary(server: GpuServer, head: Head) -> dict[str, Any]:
    """Every boundary against what the canary's own hook saw, whole and in chunks; and each fault's smallest error."""
    checked, planted = [], dict.fromkeys(FAULTS, torch.inf)
    seen: list[torch.Tensor] = []
    for attempt, length in enumerate(CANARY_LENGTHS):
        rid = RequestId("gpu", None, attempt, length)
        server.generate({"input_ids": prompt(attempt, length, TINY["vocab_size"]), "rid": str(rid)})
        dump = await_file(server.dumps / f"{rid}.safetensors")
        listened = await_file(server.dumps / f"{rid}.canary.safetensors")
        found = check_canary(dump, [listened])
        checked.append({"rows": length, "passed": found.passed, "errors": [slot.error for slot in found.slots]})
        with safe_open(dump, framework="pt") as file:
            seen.append(file.get_tensor("hidden_states"))
    for states, other in zip(seen, [seen[1], seen[0], seen[3], seen[2]], strict=True):
        for name, fault in FAULTS.items():
            errors = [_error(fault(states, k, other, head), states[:, k]) for k in range(1, DEPTH + 1)]
            planted[name] = min(planted[name], *errors)
    return {"tolerance": TOLERANCES[seen[0].dtype], "checked": checked, "planted_smallest_error": planted}


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest row-wise relative difference, as the canary's check takes it."""
    differences = (found.float() - wanted.float()).norm(dim=-1) / wanted.float().norm(dim=-1)
    return float(differences.max())


def answers(server: GpuServer) -> list[Answered]:
    """Send all prompts in one batch, captured, with input logprobs from position 0."""
    prompts = [prompt(100 + i, length, TINY["vocab_size"]) for i, length in enumerate(LENGTHS)]
    rids = [RequestId("lp", i, 0, length) for i, length in enumerate(LENGTHS)]
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
    body = {"input_ids": prompts, "rid": [str(rid) for rid in rids], **asked}
    said = [ServerLogprobs.of_answer(answer["meta_info"]) for answer in server.generate(body)]
    found = []
    for rid, tokens, one in zip(rids, prompts, said, strict=True):
        with safe_open(await_file(server.dumps / f"{rid}.safetensors"), framework="pt") as file:
            if file.get_tensor("token_ids").tolist() != tokens:
                raise RuntimeError(f"{rid} holds other tokens than were sent")
            found.append(Answered(tokens, file.get_tensor("hidden_states"), one))
    return found


def logprobs(answered: Sequence[Answered], head: Head) -> dict[str, Any]:
    """Every row's deviation in nats and in units of its tolerance; and what each fault in the final slot shows."""
    errors, shares, agreeing = [], [], 0
    for one in answered:
        found = _deviations(one, one.states[:, -1], head)
        errors.append(found.errors)
        shares.append(found.errors / found.allowed)
        agreeing += found.agreeing or 0
    rows = sum(len(part) for part in errors)
    return {
        "prompts": LENGTHS,
        "rows": rows,
        "top1": agreeing / rows,
        "nats": _quantiles(errors),
        "of_tolerance": _quantiles(shares),
        "passed": float(torch.cat(shares).max()) <= 1,
        "planted": {name: _planted(answered, fault, head) for name, fault in FAULTS.items()},
    }


def _planted(answered: Sequence[Answered], fault: Fault, head: Head) -> dict[str, float]:
    """The smallest, over prompts, of a record's largest deviation."""
    nats, shares = [], []
    for one in answered:
        other = next((two for two in answered if two is not one and len(two.tokens) == len(one.tokens)), None)
        stranger = other.states if other is not None else one.states.roll(7, 0)
        found = _deviations(one, fault(one.states, DEPTH, stranger, head), head)
        nats.append(float(found.errors.max()))
        shares.append(float((found.errors / found.allowed).max()))
    return {"nats": min(nats), "of_tolerance": min(shares)}


def _deviations(one: Answered, rows: torch.Tensor, head: Head) -> Any:
    return deviations(rows, one.tokens, one.said, head.norm_weight, head.eps, head.lm_head, head.dtype)


def _quantiles(parts: Iterable[torch.Tensor]) -> dict[str, float]:
    values = torch.cat(list(parts)).double()
    return {str(quantile): float(values.quantile(quantile)) for quantile in QUANTILES}
