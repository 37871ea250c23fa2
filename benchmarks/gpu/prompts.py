"""Prompts of random tokens, sent; and waiting for a dump. Shared by the GPU benchmarks."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def prompt(seed: int, length: int, vocabulary: int) -> list[int]:
    """`length` token ids, always the same for a seed."""
    draw = random.Random(seed)
    return [draw.randrange(2, vocabulary) for _ in range(length)]


def post(url: str, body: dict[str, Any], timeout: float, key: Mapping[str, str] | None = None) -> Any:
    """POST /generate for one token a prompt; `key` is the header that a server with a key wants."""
    body = {"sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}, **body}
    headers = {"Content-Type": "application/json", **(key or {})}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def await_file(path: Path, seconds: float = 60) -> Path:
    """Return `path` once it is there; raises TimeoutError with what is there instead."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            found = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
            raise TimeoutError(f"no {path.name}; there is {found}")
        time.sleep(0.01)
    return path
