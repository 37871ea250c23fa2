"""SGLang 0.5.17 from the carried payload on this machine's GPU, with capture and its rivals attached as plugins."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.prompts import post
from remote.attach.ways import plugin_folder
from remote.capture.environment import environment
from remote.shared.messages.server import CaptureSpec

REPOSITORY = Path(__file__).resolve().parents[2]
READY_SECONDS = 200.0
FLAGS = (
    "--skip-tokenizer-init",
    "--attention-backend=triton",
    "--sampling-backend=pytorch",
    "--moe-runner-backend=triton",
    "--disable-cuda-graph",
    "--disable-radix-cache",
    "--grammar-backend=none",
    "--mm-feature-transport=cpu",
    "--random-seed=1",
)


class GpuServer:
    """One server; `post` talks to it, `stop` ends its process group."""

    def __init__(
        self,
        root: Path,
        model: Path,
        port: int,
        spec: CaptureSpec,
        log: Path,
        flags: Sequence[str],
        gpus: str,
        base: Sequence[str] = FLAGS,
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.dumps = Path(spec.dump_dir)
        self.log = log
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port)]
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                [*command, *base, *flags],
                env={**capturing(root, spec), "CUDA_VISIBLE_DEVICES": gpus},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Pid of its first process."""
        return self._process.pid

    def wait(self, seconds: float) -> None:
        """Return when it is healthy; raises RuntimeError with the log's end otherwise."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])
        raise RuntimeError(f"the server is not healthy (exit {self._process.poll()}):\n{tail}")

    def generate(self, body: dict[str, Any], timeout: float = 300) -> Any:
        """POST /generate for one token a prompt."""
        return post(self.url, body, timeout)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)


def capturing(root: Path, spec: CaptureSpec) -> dict[str, str]:
    """A server's environment with capture and its rivals as plugins."""
    plugins = [plugin_folder(REPOSITORY), Path(__file__).parent / "plugin"]
    return {**serving(root, plugins), **environment(spec)}


def serving(root: Path, plugins: Sequence[Path] = ()) -> dict[str, str]:
    """The environment in which SGLang of the payload in `root` serves on this machine."""
    compiler = Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve()
    path = [REPOSITORY, *plugins, Path(__file__).parent / "stubs", root / "pay", root / "site"]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(entry) for entry in path),
        "CUDA_HOME": str(compiler.parents[1]),
        "PATH": f"{compiler.parent}{os.pathsep}{os.environ['PATH']}",
        "TVM_FFI_CACHE_DIR": str(root / "jitcache"),
        "SGLANG_IS_FLASHINFER_AVAILABLE": "false",
        "SGLANG_DISABLED_MODEL_ARCHS": (root / "disabled_archs").read_text().strip(),
        "SGLANG_ENABLE_JIT_DEEPGEMM": "0",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
