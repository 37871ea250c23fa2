"""Checks capture of the model families and quantised weights that need a GPU, all cases in one call, side by side.

    python -m benchmarks.families_gpu --root ~/sglang-gpu --out benchmarks/results [--only kimi-k2.5,gpt_oss]

Real SGLang serves every case of benchmarks/gpu/cases.py and gets prompts of unequal lengths at once, in chunks, with a
shared prefix, and one prompt twice. Every row of every boundary is compared with transformers in float32 on the same
weights (quantised weights are dequantised first). The error may be at most twice that of transformers in the served
dtype. Each case's line is written as soon as it is known.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from benchmarks.gpu.cases import CASES, LAYERS, VOCABULARY, Case
from benchmarks.gpu.prompts import await_file, prompt
from benchmarks.gpu.server import FLAGS, GpuServer
from remote.data.reference import load_model
from remote.parity.canary import check_canary
from remote.parity.head import load_head
from remote.parity.logprobs import ServerLogprobs, deviations
from remote.shared.errors import RoostError
from remote.shared.messages.server import CaptureSpec
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import register

PORT = 30100
CHUNK = 256
READY_SECONDS = 150.0
SERVING = f"--mem-fraction-static=0.9 --max-total-tokens=16384 --context-length=4096 --chunked-prefill-size={CHUNK}"
TIMES_ALLOWED = 2.0
"""The largest permitted error, as a multiple of the error of transformers in the served dtype."""
QUANTILES = (0.5, 0.99, 1.0)


def prompts() -> list[list[int]]:
    """Return prompts of unequal lengths, some longer than a chunk, with a shared prefix, and one prompt twice."""
    lengths = (17, 130, CHUNK, CHUNK + 1, 700)
    shared, one, other = (prompt(50 + i, length, VOCABULARY) for i, length in enumerate((200, 30, 45)))
    return [
        *(prompt(i, length, VOCABULARY) for i, length in enumerate(lengths)),
        shared + one,
        shared + other,
        shared + one,
    ]


@dataclass
class Served:
    """A case and its server."""

    case: Case
    folder: Path
    server: GpuServer


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--root", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--only", default="", help="names of cases, with commas between them; all by default")
    given = options.parse_args()
    chosen = [case for case in CASES if not given.only or case.name in given.only.split(",")]
    found: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": machine(), "cases": {}}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.root / "logs").mkdir(parents=True, exist_ok=True)
    models = given.root / "models" / "families"
    models.mkdir(parents=True, exist_ok=True)
    folders = [case.make(models) for case in chosen]
    served = [
        start(given.root, case, folder, number)
        for number, (case, folder) in enumerate(zip(chosen, folders, strict=True))
    ]
    for one in served:
        try:
            found["cases"][one.case.name] = judged(one)
        except Exception as error:
            traceback.print_exc()
            found["cases"][one.case.name] = {"problem": f"{type(error).__name__}: {error}"[-3000:]}
        finally:
            one.server.stop()
        print(one.case.name, json.dumps(found["cases"][one.case.name])[:700], flush=True)
        path = given.out / f"families_gpu-{found['date']}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")


def machine() -> str:
    from importlib.metadata import version

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "sglang", "transformers"))
    return f"{gpu}, {packages}, Python {sys.version.split()[0]}"


def start(root: Path, case: Case, folder: Path, number: int) -> Served:
    dumps = Path(f"/dev/shm/roost-family-{number}")
    shutil.rmtree(dumps, ignore_errors=True)
    spec = CaptureSpec(
        layers=list(range(LAYERS)), dump_dir=str(dumps), high_water_bytes=4 << 30, pinned_bytes=256 << 20
    )
    flags = [*SERVING.split(), f"--dtype={case.dtype}", *case.flags]
    server = GpuServer(
        root,
        folder,
        PORT + number,
        spec,
        root / "logs" / f"{case.name}.log",
        flags,
        "0",
        base=[flag for flag in FLAGS if flag not in case.drop],
    )
    return Served(case, folder, server)


def judged(one: Served) -> dict[str, Any]:
    """Run all checks of a case; return its result."""
    begun = time.monotonic()
    one.server.wait(READY_SECONDS)
    waited = time.monotonic() - begun
    dumps = one.server.dumps
    for nonce in ("family", "canary"):
        register(dumps, nonce)
    sent = prompts()
    rids = [RequestId("family", index, 0, len(tokens)) for index, tokens in enumerate(sent)]
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
    answers = one.server.generate({"input_ids": sent, "rid": [str(rid) for rid in rids], **asked})
    states = [read(dumps / f"{rid}.safetensors") for rid in rids]
    heard = canary(one)
    logprobs = [
        logprob(one.folder, rows, tokens, answer) for rows, tokens, answer in zip(states, sent, answers, strict=True)
    ]
    one.server.stop()
    errors = compared(one, sent, states)
    return {
        "waited_seconds": round(waited, 1),
        "rows": sum(map(len, sent)),
        "canary": heard,
        "logprobs": worst(logprobs),
        **errors,
    }


def read(path: Path) -> torch.Tensor:
    with safe_open(str(await_file(path)), framework="pt") as file:
        states: torch.Tensor = file.get_tensor("hidden_states")
    return states


def canary(one: Served) -> dict[str, Any]:
    rid = RequestId("canary", None, 0, CHUNK + 44)
    one.server.generate({"input_ids": prompt(90, CHUNK + 44, VOCABULARY), "rid": str(rid)})
    dump = await_file(one.server.dumps / f"{rid}.safetensors")
    found = check_canary(dump, [await_file(one.server.dumps / f"{rid}.canary.safetensors")])
    return {"passed": found.passed, "largest": max(slot.error for slot in found.slots)}


def logprob(folder: Path, states: torch.Tensor, tokens: list[int], answer: Any) -> dict[str, Any]:
    try:
        head = load_head(folder)
    except RoostError as error:
        return {"refused": str(error)}
    said = ServerLogprobs.of_answer(answer["meta_info"])
    found = deviations(states[:, -1], tokens, said, head.norm_weight, head.eps, head.lm_head, head.dtype).summary()
    return {"passed": found.passed, "of_tolerance": found.excess, "top1": found.top1}


def worst(found: list[dict[str, Any]]) -> dict[str, Any]:
    return max(found, key=lambda one: one.get("of_tolerance", 0))


def compared(one: Served, sent: list[list[int]], states: list[torch.Tensor]) -> dict[str, Any]:
    """Return each slot's row errors against float32: those of the server, and of transformers in the served dtype."""
    torch.backends.cuda.matmul.allow_tf32 = False
    truth = boundaries(one.folder, torch.float32, sent)
    own = boundaries(one.folder, getattr(torch, one.case.dtype), sent)
    server = quantiles([row_errors(found, wanted) for found, wanted in zip(states, truth, strict=True)])
    reference = quantiles([row_errors(found, wanted) for found, wanted in zip(own, truth, strict=True)])
    twice = all(a <= max(TIMES_ALLOWED * b, 1e-5) for a, b in zip(server["0.5"], reference["0.5"], strict=True))
    tails = all(a <= max(TIMES_ALLOWED * b, 1e-4) for a, b in zip(server["0.99"], reference["0.99"], strict=True))
    return {"server": server, "transformers": reference, "within_twice": twice, "tails_within_twice": tails}


@torch.no_grad()
def boundaries(folder: Path, dtype: torch.dtype, sent: list[list[int]]) -> list[torch.Tensor]:
    """Return for each prompt float32 [rows, boundaries, hidden], from hooks on the blocks."""
    model = load_model(folder, dtype).eval().cuda()
    seen: list[torch.Tensor] = []

    width = model.config.hidden_size

    def keep(_: Any, arguments: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        seen.append(hidden.reshape(-1, width).float().cpu())

    def begin(_: Any, arguments: Any, keywords: Any) -> None:
        seen.clear()
        keep(_, (), arguments[0] if arguments else keywords["hidden_states"])

    model.model.layers[0].register_forward_pre_hook(begin, with_kwargs=True)
    for layer in model.model.layers:
        layer.register_forward_hook(keep)
    found = []
    for tokens in sent:
        model(torch.tensor([tokens], device="cuda"), use_cache=False)
        found.append(torch.stack(seen, dim=1))
    del model
    torch.cuda.empty_cache()
    return found


def row_errors(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """[rows, slots]"""
    return (found.float() - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp_min(1e-12)


def quantiles(errors: list[torch.Tensor]) -> dict[str, list[float]]:
    """Return for each quantile over all rows one figure for each slot."""
    rows = torch.cat(errors)
    return {str(q): [float(f"{value:.3g}") for value in rows.quantile(q, dim=0)] for q in QUANTILES}


if __name__ == "__main__":
    main()
