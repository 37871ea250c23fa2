"""What SGLang and the driver say of themselves, read from their real forms."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

from remote.history import gauges
from remote.history.gauges import Gauges, of_smi
from remote.history.sglang import ServerGauge, of_metrics
from remote.shared.messages.history import GpuReading
from tests.remote.history.hostfolder import HostFolder

PREFILL = (
    "[2026-11-30 10:00:0{second}] Prefill batch, #new-seq: 1, #new-token: {tokens}, #cached-token: 0, "
    "token usage: 0.01, #running-req: 3, #queue-req: {queued}, #pending-token: 0, cuda graph: False, "
    "input throughput (token/s): 81.35\n"
)
METRICS = """# HELP sglang:num_queue_reqs The number of requests in the waiting queue.
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 7.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0",dp_rank="1"} 2.0
sglang:num_running_reqs{model_name="m"} 3.0
sglang:num_running_reqs_offline_batch{model_name="m"} 99.0
sglang:prompt_tokens_total{model_name="m"} 1.25e+06
"""


def test_a_servers_queue_is_read_from_its_log_since_the_first_reading(tmp_path: Path) -> None:
    host = HostFolder(tmp_path)
    state = host.server()
    log = Path(state.log)
    log.write_text(PREFILL.format(second=0, tokens=9000, queued=50))
    gauge = ServerGauge(host.workdir.server("main"))
    assert gauge.look(state).queued is None
    with log.open("a") as more:
        more.write(PREFILL.format(second=1, tokens=400, queued=5) + PREFILL.format(second=2, tokens=8, queued=4)[:60])
    load = gauge.look(state)
    assert (load.queued, load.running) == (5, 3)
    assert load.prefill_tokens_per_second
    assert gauge.look(state).prefill_tokens_per_second == 0


def test_probes_do_not_count_as_use_of_a_server(tmp_path: Path) -> None:
    host = HostFolder(tmp_path)
    state = host.server()
    log = Path(state.log)
    log.write_text("")
    gauge = ServerGauge(host.workdir.server("main"))
    gauge.look(state)
    used = gauge.used_at
    for tokens, counts in ((8, False), (300, True)):
        with log.open("a") as more:
            more.write(PREFILL.format(second=1, tokens=tokens, queued=0))
        gauge.look(state)
        assert (gauge.used_at > used) == counts


def test_metrics_are_summed_over_ranks() -> None:
    assert of_metrics(METRICS) == {"num_queue_reqs": 9.0, "num_running_reqs": 3.0, "prompt_tokens_total": 1_250_000.0}


def test_a_metrics_port_that_does_not_answer_leaves_the_log(tmp_path: Path) -> None:
    host = HostFolder(tmp_path)
    state = host.server(command=["sglang", "--enable-metrics"])
    Path(state.log).write_text("")
    gauge = ServerGauge(host.workdir.server("main"))
    gauge.look(state)
    with Path(state.log).open("a") as more:
        more.write(PREFILL.format(second=1, tokens=40, queued=2))
    assert gauge.look(state).queued == 2


def test_nvidia_smis_cells_are_read_and_what_it_does_not_support_is_left_out() -> None:
    row = ["3", "97", "131072", "143771", "688.25", "64", "1980"]
    assert of_smi(row) == GpuReading(
        index=3, use_percent=97, memory_bytes=131072 << 20, total_bytes=143771 << 20, watts=688.25, celsius=64,
        megahertz=1980,
    )  # fmt: skip
    mig = of_smi(["0", "[N/A]", "100", "200", "[N/A]", "40", "500"])
    assert mig is not None
    assert (mig.use_percent, mig.watts, mig.celsius) == (None, None, 40)
    assert of_smi(["No devices were found"]) is None


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="this machine has a driver")
def test_a_host_without_a_driver_is_one_sentence() -> None:
    found = Gauges()
    assert (found.read(), found.problem) == ([], gauges.NO_DRIVER)


class _NvmlError(Exception):
    pass


def test_a_gpu_that_does_not_support_a_question_still_answers_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library in NVML's form, since this machine has none; the real one is looked at on a GPU (docs/watching.md)."""

    def unsupported(*_: object) -> float:
        raise _NvmlError("Not Supported")

    nvml = types.SimpleNamespace(
        NVMLError=_NvmlError, NVML_TEMPERATURE_GPU=0, NVML_CLOCK_SM=1, nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1, nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda _: types.SimpleNamespace(used=5, total=9),
        nvmlDeviceGetPowerUsage=unsupported, nvmlDeviceGetClockInfo=lambda *_: 1755,
        nvmlDeviceGetUtilizationRates=lambda _: types.SimpleNamespace(gpu=50),
        nvmlDeviceGetTemperature=lambda *_: 61,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(Path, "exists", lambda _: True)
    (reading,) = Gauges().read()
    assert (reading.use_percent, reading.watts, reading.celsius, reading.megahertz) == (50, None, 61, 1755)
