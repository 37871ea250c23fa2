"""The collector's part in the benchmark, as a process of its own: takes dumps away as they become whole.

    python -m benchmarks.gpu.drain DIRECTORY

Reads and hashes each dump, deletes it, and prints one JSON line with its size, and with whether the row sums of a
dump with the nonce `ours` are those of its rows; runs until it is ended.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xxhash

from remote.shared.shard import header
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.rowsums import NAME, RowSums, text

_THREADS = 3
_BLOCK = 8 << 20


def main(directory: Path) -> None:
    taken: set[str] = set()
    lock = threading.Lock()

    def take(path: Path) -> None:
        digest, size = xxhash.xxh3_128(), 0
        with path.open("rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                size += len(block)
        row = {"name": path.name, "bytes": size, "at": time.time()}
        if path.name.startswith("roost.ours.") and path.suffix == ".safetensors":
            row["summed"] = summed(path)
        path.unlink()
        with lock:
            print(json.dumps(row), flush=True)

    with ThreadPoolExecutor(_THREADS) as pool:
        while True:
            for path in sorted(directory.glob("[!.]*")):
                if path.name not in taken and path.suffix in (".safetensors", ".pt", ".json"):
                    taken.add(path.name)
                    pool.submit(take, path)
            time.sleep(0.005)


def summed(path: Path) -> bool:
    """Whether the rows in the file have the sums that capture computed on the device."""
    with header.open_regular(path) as file:
        found = header.read(file)
    states = found.tensors["hidden_states"]
    rows = np.memmap(path, np.uint16, "r", states.begin, states.shape)
    request = RequestId.parse(path.name.removesuffix(path.suffix))
    assert request is not None
    assert request.index is not None
    sums = RowSums(request.index, json.loads(found.metadata["boundaries"]))
    sums.add(rows)
    return text(sums.totals) == found.metadata[NAME]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
