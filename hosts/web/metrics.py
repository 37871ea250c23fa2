"""The fleet as Prometheus metrics, with names, units and labels after Prometheus' conventions. Laptop's side, pure.

Labels are only hosts of the inventory, runs, servers and GPU numbers, so the fleet limits their number. Unknown values
have no sample. A lost host has only `roost_host_up 0` and the time of its last message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hosts.series.view import FleetView, HostView
from remote.shared.messages.history import RunReading

STATES = ("starting", "running", "waiting", "draining", "paused", "stopped", "complete", "failed", "silent")
"""Status words of a run that have a sample. Every other word counts as `other`."""
_HOST, _RUN, _GPU, _SERVER = ["host"], ["host", "run"], ["host", "gpu"], ["host", "server", "mode"]


class FleetCollector(Collector):
    """Collects the metrics of the fleet's newest view whenever Prometheus asks."""

    def __init__(self, view: Callable[[], FleetView]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Yield the present value of every metric."""
        hosts = self._view().hosts
        yield from _of_hosts(hosts)
        heard = [host for host in hosts if not host.is_lost and host.glance is not None]
        yield from _of_runs(heard)
        yield from _of_servers(heard)
        yield from _of_gpus(heard)


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"roost_{name}", text, labels=labels)


def _of_hosts(hosts: list[HostView]) -> Iterator[Metric]:
    up = _gauge("host_up", "Whether the host answers now.", _HOST)
    seen = _gauge("host_last_seen_timestamp_seconds", "Unix time of the host's last message.", _HOST)
    rate = _gauge("host_tokens_per_second", "Tokens that the host's runs finish per second.", _HOST)
    spent = _gauge("host_spent_dollars", "Cost of the host for the runs that are shown.", _HOST)
    ram = _gauge("host_ramdisk_free_bytes", "Free bytes in the RAM disk for dumps.", _HOST)
    dumps = _gauge("host_dump_bytes", "Bytes of dumps that wait in the RAM disk.", _HOST)
    for host in hosts:
        up.add_metric([host.name], 0.0 if host.is_lost or host.glance is None else 1.0)
        if host.heard_at:
            seen.add_metric([host.name], host.heard_at)
        if host.is_lost or host.glance is None:
            continue
        rate.add_metric([host.name], host.rate)
        dumps.add_metric([host.name], host.glance.reading.dump_bytes)
        if host.bill.spent is not None:
            spent.add_metric([host.name], host.bill.spent)
        if host.glance.reading.ram_free_bytes is not None:
            ram.add_metric([host.name], host.glance.reading.ram_free_bytes)
    yield from (up, seen, rate, spent, ram, dumps)


def _of_runs(hosts: list[HostView]) -> Iterator[Metric]:
    records = _gauge("run_records", "Records of the host's share, by state.", [*_RUN, "state"])
    tokens = _gauge("run_tokens", "Tokens of the host's share, by state.", [*_RUN, "state"])
    stored = _gauge("run_stored_bytes", "Bytes of hidden states that the host has finished.", _RUN)
    flight = _gauge("run_in_flight_records", "Records that are being extracted now.", _RUN)
    disk = _gauge("run_disk_free_bytes", "Free bytes on the file system of the run's shards.", _RUN)
    waited = _gauge("run_capture_wait_seconds", "Seconds that forward passes waited for capture.", _RUN)
    state = _gauge("run_state", "1 for the state that the run is in.", [*_RUN, "state"])
    for host in hosts:
        for run in host.runs:
            label, counts = [host.name, run.run], run.state.counts
            done = counts.done + counts.freed
            records.add_metric([*label, "done"], done)
            records.add_metric([*label, "quarantined"], counts.quarantined)
            records.add_metric([*label, "open"], max(0, counts.assigned - done - counts.quarantined))
            tokens.add_metric([*label, "done"], counts.tokens_done)
            tokens.add_metric([*label, "open"], max(0, counts.tokens_assigned - counts.tokens_done))
            stored.add_metric(label, counts.bytes_done)
            flight.add_metric(label, run.state.in_flight)
            waited.add_metric(label, run.capture_wait_seconds)
            if run.disk_total_bytes:
                disk.add_metric(label, run.disk_free_bytes)
            for name in (*STATES, "other"):
                state.add_metric([*label, name], float(name == state_of(run)))
    yield from (records, tokens, stored, flight, disk, waited, state)


def state_of(run: RunReading) -> str:
    """Return the state in `STATES` with which a run's word begins (`draining 12` is `draining`), or `other`."""
    word = run.word.partition(" ")[0].rstrip(":")
    return word if word in STATES else "other"


def _of_servers(hosts: list[HostView]) -> Iterator[Metric]:
    ready = _gauge("server_ready", "Whether the server is ready, by its record.", _SERVER)
    restarts = _gauge("server_restarts", "How often the supervisor started the server again.", _SERVER)
    queued = _gauge("server_queued_requests", "Requests that wait in SGLang.", _SERVER)
    prefill = _gauge("server_prefill_tokens_per_second", "Prefill throughput as reported by SGLang.", _SERVER)
    for host in hosts:
        for server in host.glance.reading.servers if host.glance else ():
            label = [host.name, server.name, server.mode]
            ready.add_metric(label, float(server.status == "ready" and server.alive))
            restarts.add_metric(label, server.restarts)
            if server.queued is not None:
                queued.add_metric(label, server.queued)
            if server.prefill_tokens_per_second is not None:
                prefill.add_metric(label, server.prefill_tokens_per_second)
    yield from (ready, restarts, queued, prefill)


def _of_gpus(hosts: list[HostView]) -> Iterator[Metric]:
    use = _gauge("gpu_utilization_ratio", "Share of the time in which the GPU was busy, 0 to 1.", _GPU)
    memory = _gauge("gpu_memory_used_bytes", "Bytes of the GPU's memory in use.", _GPU)
    size = _gauge("gpu_memory_bytes", "Bytes of the GPU's memory.", _GPU)
    power = _gauge("gpu_power_watts", "Power that the GPU draws.", _GPU)
    heat = _gauge("gpu_temperature_celsius", "Temperature of the GPU.", _GPU)
    for host in hosts:
        for gpu in host.glance.reading.gpus if host.glance else ():
            label = [host.name, str(gpu.index)]
            if gpu.use_percent is not None:
                use.add_metric(label, gpu.use_percent / 100)
            for family, value in ((memory, gpu.memory_bytes), (size, gpu.total_bytes), (power, gpu.watts)):
                if value is not None:
                    family.add_metric(label, value)
            if gpu.celsius is not None:
                heat.add_metric(label, gpu.celsius)
    yield from (use, memory, size, power, heat)
