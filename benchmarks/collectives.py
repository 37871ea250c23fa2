"""Times the collectives of tensor parallelism under several NCCL settings, on this machine's own GPUs.

    python benchmarks/collectives.py --gpus 0,1 --hidden 7168 --out benchmarks/results

Settings are interleaved over several rounds and compared by the ratio of medians to the untouched environment. A
setting that crashes, hangs or is ignored is a row of the table. With fewer than two GPUs there is nothing to measure:
the program prints "not measured" with the reason and writes nothing. `--gpus ""` tries the mechanism with two gloo
ranks. NVLink multicast (NVLS) stays off.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from remote.context import Context
from remote.report import Report
from remote.shared.errors import HostError
from remote.shared.messages.tune import ScreenRequest, ScreenResult
from remote.shared.paths import Workdir
from remote.tune.screen import screen

SETTINGS: dict[str, dict[str, str]] = {
    "untouched": {},
    "LL Ring (inventory.yaml)": {
        "NCCL_PROTO": "LL",
        "NCCL_ALGO": "Ring",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_MAX_NCHANNELS": "16",
        "NCCL_BUFFSIZE": "16777216",
        "NCCL_NTHREADS": "512",
    },
    "Simple Ring": {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"},
    "LL128 Ring": {"NCCL_PROTO": "LL128", "NCCL_ALGO": "Ring"},
    "Tree": {"NCCL_ALGO": "Tree"},
    "2 channels": {"NCCL_MAX_NCHANNELS": "2"},
    "no P2P": {"NCCL_P2P_DISABLE": "1"},
    "unknown protocol": {"NCCL_PROTO": "Nonsense"},
    "threads out of range": {"NCCL_NTHREADS": "7"},
}


def main() -> None:
    """Measure, then write `collectives-<date>.json` and `.md`."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gpus", default="0,1")
    options.add_argument("--hidden", type=int, default=7168)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options.add_argument("--logs", type=Path, help="keep NCCL's own logs of the first round here")
    given = options.parse_args()
    gpus = [int(gpu) for gpu in given.gpus.split(",") if gpu]
    context = Context(Workdir(Path.cwd()), Report(sys.stderr))
    results: dict[str, list[ScreenResult]] = {name: [] for name in SETTINGS}
    for round_number in range(given.rounds):
        for name, setting in SETTINGS.items():
            logs = given.logs / name.split(" (")[0].replace(" ", "-") if given.logs and not round_number else None
            request = ScreenRequest(env={"NCCL_NVLS_ENABLE": "0", **setting}, gpus=gpus, hidden_size=given.hidden)
            try:
                results[name].append(screen(request, context, keep_logs=logs))
            except HostError as error:
                raise SystemExit(f"not measured: {error}") from None
            print(name, results[name][-1].status, f"{results[name][-1].seconds:.1f} s", flush=True)
    write(given.out, results, gpus, given.hidden)


def medians(results: list[ScreenResult]) -> dict[tuple[str, int], tuple[float, float, float]]:
    """(operation, bytes) -> median, lowest and highest microseconds over all rounds and repetitions."""
    values: dict[tuple[str, int], list[float]] = {}
    for result in results:
        for sample in result.samples:
            values.setdefault((sample.operation, sample.size_bytes), []).extend(sample.microseconds)
    return {key: (statistics.median(each), min(each), max(each)) for key, each in values.items()}


def write(folder: Path, results: dict[str, list[ScreenResult]], gpus: list[int], hidden: int) -> None:
    """Write all numbers as JSON and the table as Markdown."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    name = f"{len(gpus)} x {torch.cuda.get_device_name(gpus[0])}" if gpus else "2 gloo ranks on the CPU"
    nccl = results["untouched"][0].chosen.version or "none"
    machine = f"{name}, {platform.machine()}, torch {torch.__version__}, NCCL {nccl}, {date}"
    document = {
        "machine": machine,
        "hidden_size": hidden,
        "settings": SETTINGS,
        "results": {name: [result.model_dump() for result in each] for name, each in results.items()},
    }
    (folder / f"collectives-{date}.json").write_text(json.dumps(document, indent=1) + "\n")
    base = medians(results["untouched"])
    lines = [f"# Collectives under NCCL settings\n\n{machine}; hidden {hidden}, bf16.", ""]
    lines += ["Median µs (lowest .. highest) and ratio to the untouched environment; below 1 is faster.", ""]
    lines += [f"| setting | {' | '.join(f'{op} {size:,} B' for op, size in base)} | transport, channels |"]
    lines += ["|---|" + "---|" * (len(base) + 1)]
    for setting, each in results.items():
        lines.append(f"| {setting} | {' | '.join(_cells(base, each))} | {_chosen(each[0])} |")
    (folder / f"collectives-{date}.md").write_text("\n".join(lines) + "\n")


def _cells(base: dict[tuple[str, int], tuple[float, float, float]], results: list[ScreenResult]) -> list[str]:
    bad = next((result for result in results if result.status != "ok"), None)
    if bad is not None:
        return [f"{bad.status}: {bad.cause}", *[""] * (len(base) - 1)]
    own = medians(results)
    return [f"{own[k][0]:.1f} ({own[k][1]:.1f} .. {own[k][2]:.1f}) {own[k][0] / base[k][0]:.2f}" for k in base]


def _chosen(result: ScreenResult) -> str:
    chosen = result.chosen
    warned = f"; NCCL says: {chosen.warnings[0]}" if chosen.warnings else ""
    return f"{', '.join(chosen.transports) or '-'}, {chosen.channels or '-'}{warned}"


if __name__ == "__main__":
    main()
