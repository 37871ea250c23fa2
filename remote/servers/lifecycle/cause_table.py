"""Why SGLang servers end, as a table: what the log says, what that means, and which setting to change.

Read by `causes`. One row for each cause, the most specific first. `example` is the text as the library in `source`
prints it; the row's test reads it. Fields in braces are groups of the pattern, or values that `causes` adds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One cause of a server's end."""

    name: str
    pattern: str
    """Searched for in the whole log, with `^` and `$` at line ends; the last match counts."""
    sentence: str
    remedy: str
    source: str
    """Where the message comes from: `seen` in a run, or the library and file that contain it."""
    example: str

    def search(self, text: str) -> re.Match[str] | None:
        """Return the last match in `text`, or None."""
        last = None
        for last in re.finditer(self.pattern, text, re.MULTILINE):  # noqa: B007
            pass
        return last


_OUT_OF_MEMORY = (
    r"CUDA out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+)\. GPU (?P<gpu>\d+) has a total capacity of "
    r"(?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free\.(?P<rest>.*)"
)

CAUSES = (
    Cause(
        "weights-memory",
        r"in (?:load_model|_initialize_model|initialize_model)$\n(?:[ \t].*\n)*(?:[\w.]+\.)?OutOfMemoryError: "
        + _OUT_OF_MEMORY,
        "the model's weights do not fit into GPU {on_gpu}: {wanted} more was needed and {free} of {total} was free"
        "{sharers}",
        "Spread the model over more GPUs (`tp`); if another process holds memory there, `inv free` names it.",
        "seen (torch 2.11, sglang 0.5.17 on an H200)",
        '  File "/x/sglang/srt/model_executor/model_runner.py", line 1053, in load_model\n'
        "    loaded = load_model_with_memory_saver(\n"
        "             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        '  File "/x/sglang/srt/layers/quantization/unquant.py", line 190, in create_weights\n'
        "    torch.empty(\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of "
        "139.80 GiB of which 10.31 MiB is free. Including non-PyTorch memory, this process has 139.78 GiB memory in "
        "use. Of the allocated memory 139.05 GiB is allocated by PyTorch",
    ),
    Cause(
        "gpu-memory",
        _OUT_OF_MEMORY,
        "GPU {on_gpu} ran out of memory: {wanted} more was needed and {free} of {total} was free{sharers}",
        "Lower `mem-fraction-static`{fraction} or `chunked-prefill-size`; if another process holds memory there, "
        "`inv free` names it.",
        "seen (torch 2.11, sglang 0.5.17 on an H200); torch c10/cuda/CUDACachingAllocator.cpp",
        "[2026-03-01 10:00:00 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 3 has a total capacity of "
        "139.80 GiB of which 1.21 GiB is free. Process 4711 has 70.02 GiB memory in use. Including non-PyTorch memory, "
        "this process has 68.50 GiB memory in use.",
    ),
    Cause(
        "kv-cache-memory",
        r"Not enough memory\. Please try to increase --mem-fraction-static\.(?: Current value: "
        r"mem_fraction_static=(?P<now>[\d.]+))?",
        "after loading the weights, no memory is left for the KV cache within `mem-fraction-static`{fraction}",
        "Raise `mem-fraction-static`, or spread the model over more GPUs (`tp`).",
        "sglang srt/model_executor/pool_configurator.py",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "mem_fraction_static=0.5",
    ),
    Cause(
        "weights-beyond-fraction",
        r"Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=(?P<now>[\d.]+)\. "
        r"Raise --mem-fraction-static above (?P<least>[\d.]+)",
        "the weights leave no memory for the KV cache within `mem-fraction-static`{fraction}",
        "Raise `mem-fraction-static` above {least}, or spread the model over more GPUs (`tp`).",
        "seen (sglang 0.5.17 on an H200)",
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.08. Raise "
        "--mem-fraction-static above 0.172 (minimum viable = 1 - available/pre = 0.1712). If using speculative "
        "decoding, draft weights are now counted.",
    ),
    Cause(
        "graph-memory",
        r"Capture cuda graph failed: (?P<why>.+)$",
        "capturing CUDA graphs failed: {why}",
        "Lower `mem-fraction-static`{fraction} or `cuda-graph-max-bs`, or set `disable-cuda-graph`.",
        "sglang srt/model_executor/runner/decode_cuda_graph_runner.py",
        "Exception: Capture cuda graph failed: CUDA error: out of memory",
    ),
    Cause(
        "nccl-shared-memory",
        r"(?:creating|attaching to) shared memory segment (?P<file>/dev/shm/nccl-\S+) .*?No space left on device",
        "NCCL found no room in /dev/shm for {file}{on_rank}",
        "Free or enlarge /dev/shm (`inv free`; in a container: `--shm-size` or `--ipc=host`).",
        "nccl src/misc/shmutils.cc",
        "gpu1:77:99 [3] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes\n"
        "gpu1:77:99 [3] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-AbCdEf (size 9637888), "
        "error: No space left on device (28)",
    ),
    Cause(
        "nccl-timeout",
        r"\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: .*?OpType=(?P<op>\w+).*?"
        r"ran for (?P<ms>\d+) milliseconds",
        "rank {rank} waited {ms} ms in {op} for the other ranks: one of them hangs or has ended",
        "Look for the first error of another rank in the log; set `NCCL_DEBUG: INFO` in the mode's `env` for more.",
        "torch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        "[rank5]:[E301 10:00:00.1 ProcessGroupNCCL.cpp:683] [Rank 5] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=7168, NumelOut=7168, Timeout(ms)=600000) ran for 600012 "
        "milliseconds before timing out.",
    ),
    Cause(
        "nccl",
        r"NCCL error in: .*?, (?P<kind>[a-z ]+)(?:, NCCL version| \(run with)[^\n]*(?:\n(?P<code>nccl\w+): [^\n]*)?"
        r"(?:\nLast error:\n(?P<last>[^\n]*))?",
        "NCCL failed{on_rank}: {kind}{last_error}",
        "Check NVLink and the NCCL variables with `inv doctor`; set `NCCL_DEBUG: INFO` in the mode's `env` for more.",
        "torch torch/csrc/distributed/c10d/NCCLUtils.hpp",
        "[rank3]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
    ),
    Cause(
        "port",
        r"(?:error while attempting to bind on address \('[^']*', (?P<port>\d+)\): |"
        r"failed to listen on any local network address\. port: (?P<port2>\d+).*?|"
        r"Address already in use \(addr='tcp://[^']*:(?P<port3>\d+)'\))(?:[Aa]ddress already in use|EADDRINUSE)?",
        "port {taken_port} was taken{by_holder}",
        "`inv free` shows which process holds it; end that process, or choose another `port`.",
        "seen (uvicorn, asyncio); torch TCPStore; zmq",
        "[2026-03-01 10:00:00] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): "
        "address already in use",
    ),
    Cause(
        "weights-corrupt",
        r"SafetensorError: Error while deserializing header: (?P<why>.+)$",
        "a weight file is corrupt or cut short: {why}",
        "Copy the model again and compare digests. A Git LFS pointer instead of the file gives the same error.",
        "seen (safetensors)",
        "SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
    ),
    Cause(
        "weights-missing",
        r"Cannot find any model weights with `(?P<path>[^`]+)`",
        "there are no weight files in {path}",
        "Copy the model's *.safetensors there.",
        "sglang srt/model_loader/loader.py",
        "RuntimeError: Cannot find any model weights with `/shared/kimi-k2.5-int4`",
    ),
    Cause(
        "file-missing",
        r"FileNotFoundError: (?:\[Errno 2\] )?No such file or directory:? '?(?P<path>[^'\n]+?)'?$",
        "a file is missing: {path}",
        "Copy the model (or whatever the file belongs to) to this host again.",
        "Python",
        "FileNotFoundError: [Errno 2] No such file or directory: '/shared/kimi/model-00003-of-00064.safetensors'",
    ),
    Cause(
        "remote-code",
        r"set the option `trust_remote_code=True`|pass the argument `trust_remote_code=True`",
        "the model contains Python code of its own, and running it is not allowed",
        "Set `trust-remote-code: true` among the mode's flags if you trust that code.",
        "transformers dynamic_module_utils.py",
        "ValueError: The repository /m contains custom code which must be executed to correctly load the model. "
        "Please pass the argument `trust_remote_code=True` to allow custom code to be run.",
    ),
    Cause(
        "architecture",
        r"Model architectures \[(?P<name>[^\]]*)\] are not supported for now",
        "this SGLang does not know the model's architecture {name}",
        "Install a newer SGLang, or check `architectures` in the model's config.json.",
        "sglang srt/models/registry.py",
        "ValueError: Model architectures ['KimiK9ForCausalLM'] are not supported for now. Supported architectures: ...",
    ),
    Cause(
        "context-length",
        r"context_length \((?P<wanted>\d+)\) is greater than the derived context_length \((?P<model>\d+)\)\..*?"
        r"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
        "`context_length` is {wanted} and the model's own limit is {model}",
        "Lower `context_length`, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 in the mode's `env`.",
        "sglang srt/configs/model_config.py",
        "ValueError: User-specified context_length (262144) is greater than the derived context_length (131072). This "
        "may lead to incorrect model outputs or CUDA errors. Note that the derived context_length may differ from "
        "max_position_embeddings in the model's config. To allow overriding this maximum, set the env var "
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
    ),
    Cause(
        "flag",
        r"error: (?P<why>unrecognized arguments: .+|argument --?[\w/-]+.*: (?:invalid|expected) .+)$",
        "SGLang does not take these flags: {why}",
        "Correct `flags`; `inv serve --dry-run` checks them against the installed SGLang.",
        "Python argparse",
        "launch_server.py: error: unrecognized arguments: --disable-cuda-grap",
    ),
    Cause(
        "driver-old",
        r"The NVIDIA driver on your system is too old \(found version (?P<version>\d+)\)",
        "the NVIDIA driver (CUDA {version}) is too old for this torch",
        "Update the driver, or install a torch built for an older CUDA.",
        "torch torch/cuda/__init__.py",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your",
    ),
    Cause(
        "driver-missing",
        r"Found no NVIDIA driver on your system|No CUDA GPUs are available|no CUDA-capable device is detected",
        "torch found no GPU that this user may use",
        "Check nvidia-smi and CUDA_VISIBLE_DEVICES, and whether the container was given the GPUs.",
        "torch torch/csrc/cuda/Module.cpp",
        "RuntimeError: No CUDA GPUs are available",
    ),
    Cause(
        "fabric-manager",
        r"Error 802: system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY",
        "CUDA is not initialised on this box (error 802): NVSwitch boxes need the fabric manager",
        "Start nvidia-fabricmanager, in the same version as the driver.",
        "cuda driver_types.h; torch c10/cuda/CUDAFunctions.cpp",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
    ),
    Cause(
        "gpu-kernel-image",
        r"no kernel image is available for execution on the device",
        "this torch or sgl-kernel was not built for this GPU",
        "Install wheels for this GPU's architecture.",
        "cuda driver_types.h",
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
    ),
    Cause(
        "gpu-hardware",
        r"(?P<what>uncorrectable (?:NVLink|ECC) error|GPU has fallen off the bus|device is lost)",
        "a GPU failed: {what}",
        "Look at `dmesg | grep -i xid`; reset or replace the GPU.",
        "cuda driver_types.h",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ),
    Cause(
        "gpu-fault",
        r"CUDA error: (?P<what>an illegal memory access was encountered|device-side assert triggered|"
        r"unspecified launch failure|misaligned address)",
        "a GPU kernel failed{on_rank}: {what}",
        "A kernel or the weights are at fault; `CUDA_LAUNCH_BLOCKING: 1` in the mode's `env` shows which kernel.",
        "cuda driver_types.h",
        "[2026-03-01 10:00:00 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    Cause(
        "disk-full",
        r"(?:\[Errno 28\] |: )?No space left on device(?:: '(?P<path>[^']+)')?",
        "a file system is full{at_path}",
        "Free the disk or RAM disk (`inv clean`, `inv free`).",
        "seen (Linux errno 28)",
        "OSError: [Errno 28] No space left on device: '/dev/shm/sglang_hs/x'",
    ),
    Cause(
        "files-limit",
        r"\[Errno 24\] Too many open files",
        "too many files are open",
        "Raise `ulimit -n` (LimitNOFILE) for the login that starts servers.",
        "Linux errno 24",
        "OSError: [Errno 24] Too many open files",
    ),
    Cause(
        "permission",
        r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']+)'",
        "this user may not use {path}",
        "Change its owner or mode.",
        "Linux errno 13",
        "PermissionError: [Errno 13] Permission denied: '/dev/shm/sglang_hs'",
    ),
    Cause(
        "rank-killed",
        r"(?:Rank (?P<rank>\d+) scheduler died during initialization \(exit code: -9\)|"
        r"Subprocess (?P<name>\w+) \(pid=\d+\) crashed with exit code -9)",
        "{killed} was killed by SIGKILL{oom}",
        "Give the host more memory, fewer servers or a smaller RAM disk; see `dmesg -T | grep -i oom`.",
        "sglang srt/entrypoints/engine.py, srt/utils/watchdog.py",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a "
        "common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
    ),
    Cause(
        "rank-bus-error",
        r"(?:Rank \d+ scheduler died during initialization \(exit code: -7\)|crashed with exit code -7\b|Bus error)",
        "a rank ended with SIGBUS: shared memory or a RAM disk was full while the rank wrote to it",
        "Free or enlarge /dev/shm (`inv free`; in a container: `--shm-size` or `--ipc=host`).",
        "sglang srt/entrypoints/engine.py; signal(7)",
        "RuntimeError: Rank 2 scheduler died during initialization (exit code: -7). If exit code is -9 (SIGKILL), a",
    ),
    Cause(
        "watchdog",
        r"watchdog timeout \(self\.watchdog_timeout=(?P<seconds>[\d.]+)",
        "a forward pass took over {seconds} s, and SGLang's watchdog ended the server",
        "Look for a hanging rank earlier in the log; raise `watchdog-timeout` if batches really take that long.",
        "sglang srt/utils/watchdog.py",
        "[2026-03-01 10:00:00 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
    ),
    Cause(
        "module",
        r"^(?:\[[^\]]*\] )?ModuleNotFoundError: No module named '(?P<name>[^']+)'$",
        "the host's Python lacks the module {name}",
        "Install it beside SGLang, or set `python` to the interpreter that has it.",
        "Python",
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'sgl_kernel'",
    ),
)
