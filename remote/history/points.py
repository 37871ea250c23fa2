"""Turns a reading into points of histories, one for each working run and one for each server."""

from __future__ import annotations

from collections.abc import Iterator

from remote.history.thinning import FINE_SECONDS
from remote.shared.messages.history import Point, Reading, RunReading, ServerReading


class Tally:
    """Counters that begin at 0 with every session of an extractor, continued from a history's last point."""

    def __init__(self, last: Point | None) -> None:
        values = {} if last is None else last.values
        self._totals = {name: value for name, value in values.items() if name.startswith("waited.")}
        self._before: dict[str, float] = {}
        self.worked = values.get("worked", 0.0)
        """Seconds for which an extractor of the run has lived on this host."""
        self._fresh = last is None

    def take(self, name: str, value: float) -> float:
        """Return the counter over all sessions, if this session's counter is at `value`.

        The session's value at this recorder's first reading counts as already included, unless there is no earlier
        history.
        """
        before = self._before.get(name, 0.0 if self._fresh else value)
        gained = value - before if value >= before else value
        self._before[name] = value
        self._totals[name] = self._totals.get(name, 0.0) + gained
        return self._totals[name]


def of_run(run: RunReading, reading: Reading, tally: Tally) -> Point:
    """Return the point of a run, with the servers and the host that it uses."""
    counts, state = run.state.counts, run.state
    finished = counts.done + counts.freed
    values = {
        "tokens_per_second": run.rate,
        "done": finished,
        "failed": counts.quarantined,
        "freed": counts.freed,
        "open": max(0, counts.assigned - finished - counts.quarantined),
        "in_flight": state.in_flight if run.alive else 0,
        "tokens_done": counts.tokens_done,
        "bytes_done": counts.bytes_done,
        "retries": state.retries,
        "parity_checked": state.parity_checked,
        "parity_excess": state.parity_excess,
        "disk_free": run.disk_free_bytes,
        "worked": tally.worked,
    }
    waited = {"paused": 0.0, "disk": 0.0, "server": 0.0, "ramdisk": 0.0, **state.waited}
    waited["ramdisk"] += state.backpressure_seconds
    waited["capture"] = run.capture_wait_seconds
    for cause, seconds in waited.items():
        values[f"waited.{cause}"] = tally.take(f"waited.{cause}", seconds)
    values |= _of_host(reading)
    for server in reading.servers:
        values |= {f"{server.name}.{name}": value for name, value in _of_server(server)}
    return Point(at=reading.at, step=FINE_SECONDS, values=values)


def of_server(server: ServerReading, reading: Reading) -> Point:
    """Return the point of a server, with the host that it runs on."""
    return Point(at=reading.at, step=FINE_SECONDS, values={**dict(_of_server(server)), **_of_host(reading)})


def _of_server(server: ServerReading) -> Iterator[tuple[str, float]]:
    yield "ready", float(server.status == "ready" and server.alive)
    for name in ("queued", "running", "prefill_tokens_per_second"):
        value = getattr(server, name)
        if value is not None:
            yield name, value


def _of_host(reading: Reading) -> dict[str, float]:
    values = {"dump_bytes": reading.dump_bytes}
    if reading.ram_free_bytes is not None:
        values["ram_free"] = reading.ram_free_bytes
    for gpu in reading.gpus:
        told = {
            "use": gpu.use_percent,
            "memory": gpu.memory_bytes,
            "watts": gpu.watts,
            "celsius": gpu.celsius,
            "megahertz": gpu.megahertz,
        }
        values |= {f"gpu{gpu.index}.{name}": value for name, value in told.items() if value is not None}
    return values
