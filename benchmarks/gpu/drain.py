"""The collector's part in the benchmark, as a process of its own: takes dumps away as they become whole.

    python -m benchmarks.gpu.drain DIRECTORY

Reads and hashes each dump, deletes it, and prints one JSON line with its size; runs until it is ended.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

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
        path.unlink()
        with lock:
            print(json.dumps({"name": path.name, "bytes": size, "at": time.time()}), flush=True)

    with ThreadPoolExecutor(_THREADS) as pool:
        while True:
            for path in sorted(directory.glob("[!.]*")):
                if path.name not in taken and path.suffix in (".safetensors", ".pt", ".json"):
                    taken.add(path.name)
                    pool.submit(take, path)
            time.sleep(0.005)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
