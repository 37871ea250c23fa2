"""Roost itself on a GPU machine: facts, a captured server, and GPU memory that runs out, through Roost's own verbs.

    python -m benchmarks.gpu.box --root ~/sglang-gpu --out benchmarks/results --gpu 1

Writes `gpu_box-<date>.json`: what `inv doctor` is told of the machine; a server in extract mode made ready (its
canary), then brought to an out-of-memory by one large prefill; a model too large for the GPU; a memory fraction too
small for the weights. For each, what Roost says and how long it took.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.gpu.models import MID, write_config
from benchmarks.gpu.prompts import post, prompt
from benchmarks.gpu.server import FLAGS, REPOSITORY, serving
from remote.servers.lifecycle import records
from remote.servers.lifecycle.key import headers
from remote.shared.messages.envelope import Call
from remote.shared.messages.server import CaptureSpec, ServerSpec
from remote.shared.paths import Workdir
from remote.shared.shard.request_id import RequestId
from remote.shared.shard.sessions import register

DUMPS = "/dev/shm/roost-box"
PORT = 30021
TOO_DEEP = 100
"""Blocks of the model that no GPU of 141 GB holds: 3 GB each."""


class Box:
    """Verbs on this machine, as SSH would run them."""

    def __init__(self, root: Path, gpu: int) -> None:
        self.workdir = Workdir(root / "roost")
        self._root = root
        self._gpu = gpu

    def verb(self, name: str, request: dict[str, Any], seconds: float = 230) -> dict[str, Any]:
        """Run a verb; its result or failure, what it said meanwhile, and seconds."""
        call = Call(verb=name, workdir=str(self.workdir.root), request=request)
        since = time.monotonic()
        answer = subprocess.run(
            [sys.executable, "-m", "remote", name],
            input=call.model_dump_json() + "\n",
            capture_output=True,
            text=True,
            env=serving(self._root),
            cwd=REPOSITORY,
            timeout=seconds,
            check=False,
        )
        lines = [json.loads(line) for line in answer.stdout.splitlines()]
        said = [line["text"] for line in lines if line["type"] == "progress"]
        last = lines[-1] if lines else {"type": "nothing", "stderr": answer.stderr[-2000:]}
        return {**last, "seconds": time.monotonic() - since, "progress": said}

    def serve(self, name: str, model: Path, flags: list[str], capture: CaptureSpec | None = None) -> dict[str, Any]:
        """Start a server of this name and wait for it."""
        spec = ServerSpec(
            name=name,
            mode="extract" if capture else "serve",
            model=str(model),
            port=PORT,
            gpus=[self._gpu],
            flags=[*(flag for flag in FLAGS if capture is None or "cuda-graph" not in flag), *flags],
            capture=capture,
            ready_timeout_seconds=170,
        )
        return self.verb("serve", {"servers": [spec.model_dump()]})

    def key(self, name: str) -> dict[str, str]:
        """The HTTP header that the server wants of every request."""
        return headers(self.workdir.server(name))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--root", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--gpu", type=int, default=0)
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    box = Box(given.root, given.gpu)
    found: dict[str, Any] = {"date": datetime.date.today().isoformat()}
    try:
        for name, part in PARTS.items():
            try:
                found[name] = part(box, given.root)
            except Exception as error:
                found[name] = {"problem": f"{type(error).__name__}: {error}"}
            print(f"{name}: {json.dumps(found[name])[:1500]}", flush=True)
            save(given.out, found)
    finally:
        found["stop"] = box.verb("stop", {"grace_seconds": 5.0})
        save(given.out, found)


def save(out: Path, found: dict[str, Any]) -> None:
    (out / f"gpu_box-{found['date']}.json").write_text(json.dumps(found, indent=1) + "\n")


def idle_facts(box: Box, root: Path) -> dict[str, Any]:
    """The machine before any server of Roost's is there."""
    return box.verb("facts", {"dump_dir": DUMPS, "model": str(folder(root, "mid", MID))})


def prefill_out_of_memory(box: Box, root: Path) -> dict[str, Any]:
    """Ready in extract mode with all memory but 2% given away; then a prefill of 32,768 tokens at once."""
    flags = ["--load-format=dummy", "--mem-fraction-static=0.98", "--chunked-prefill-size=32768"]
    flags += ["--max-prefill-tokens=32768", "--context-length=8192"]
    capture = CaptureSpec(layers=[2, 4, 7], dump_dir=DUMPS, high_water_bytes=2 << 30, pinned_bytes=1 << 30)
    ready = box.serve("big", folder(root, "mid", MID), flags, capture)
    if ready["type"] != "result":
        return {"serve": ready}
    about: dict[str, Any] = {"serve": ready, "facts": box.verb("facts", {"dump_dir": DUMPS})}
    since = time.monotonic()
    try:
        register(Path(DUMPS), "oom")
        rids = [str(RequestId("oom", i, 0, 4096)) for i in range(8)]
        body = {"input_ids": [prompt(i, 4096, MID["vocab_size"]) for i in range(8)], "rid": rids}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(post, f"http://127.0.0.1:{PORT}", body, 100, box.key("big"))
            about |= death(box, "big", since)
            with contextlib.suppress(Exception):
                about["answered"] = len(answer.result(5))
    finally:
        about["lines"] = tail(box, "big")
    return about


def death(box: Box, name: str, since: float, seconds: float = 60) -> dict[str, Any]:
    """The record of a server once it has failed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = records.load(box.workdir.server(name))
        if state is not None and state.status == "failed":
            return {
                "cause": state.cause,
                "exit_code": state.exit_code,
                "failed_after_seconds": time.monotonic() - since,
            }
        time.sleep(0.05)
    return {"cause": f"still alive after {seconds:.0f} s"}


def tail(box: Box, name: str) -> list[str]:
    """The end of a server's log."""
    state = records.load(box.workdir.server(name))
    return Path(state.log).read_text(errors="replace").splitlines()[-60:] if state else []


def weights_out_of_memory(box: Box, root: Path) -> dict[str, Any]:
    """A model that the GPU cannot hold."""
    model = folder(root, "deep", {**MID, "num_hidden_layers": TOO_DEEP})
    failed = box.serve("deep", model, ["--load-format=dummy", "--context-length=8192"])
    return {"serve": failed, "lines": tail(box, "deep")}


def fraction_too_small(box: Box, root: Path) -> dict[str, Any]:
    """Weights of 26 GB where a tenth of the memory may be used."""
    flags = ["--load-format=dummy", "--mem-fraction-static=0.1", "--context-length=8192"]
    failed = box.serve("small", folder(root, "mid", MID), flags)
    return {"serve": failed, "lines": tail(box, "small")}


PARTS = {
    "facts": idle_facts,
    "prefill_out_of_memory": prefill_out_of_memory,
    "weights_out_of_memory": weights_out_of_memory,
    "fraction_too_small": fraction_too_small,
}


def folder(root: Path, name: str, config: dict[str, Any]) -> Path:
    """A model folder with a weight file, as preflight wants one; `--load-format=dummy` does not read it."""
    model = write_config(root / "models" / f"box-{name}", config)
    save_file({"unused": torch.zeros(1)}, model / "model.safetensors")
    return model


if __name__ == "__main__":
    main()
