"""The connection from the laptop to a host: whether Fabric or OpenSSH carries it, and how fast it is.

Laptop's side, called by `inv doctor`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from hosts.doctor.findings import Finding, Network, green, yellow
from hosts.errors import ConnectionLostError
from hosts.transport.backend import Backend
from hosts.transport.openssh import openssh_version
from hosts.transport.process import Process
from hosts.transport.settings import Route
from hosts.transport.ssh import choose
from hosts.transport.words import python_program

EXCHANGES = 6
ANSWER_SECONDS = 30.0
NOISE_BYTES = 1 << 20
SAMPLE_BYTES = 16 << 20
SAMPLE_SECONDS = 3.0
"""A slow link is judged by the bytes that arrived in this time."""

# A login shell's start-up files may have printed an unfinished line, so an answer begins with a line break.
CLOCK = "import sys, time\nfor line in sys.stdin:\n    print(chr(10) + repr(time.time()), flush=True)\n"
SOURCE = f"import os\nfor _ in range({SAMPLE_BYTES >> 16}):\n    os.write(1, b'0' * 65536)\n"


@dataclass(frozen=True)
class Exchange:
    """One line to the host and its answer."""

    seconds: float
    skew: float
    """The host's clock when it answered, minus the middle of sending and receiving."""


def connection(route: Route) -> Iterator[Finding]:
    """Yield which of Fabric and OpenSSH carries the connection and why, and each unreadable line of known_hosts."""
    choice = choose(route)
    version = ".".join(map(str, openssh_version()))
    carrier = f"OpenSSH {version}" if choice.openssh else "Fabric"
    jumps = [hop.where.removeprefix("the jump host ") for hop in route.hops[:-1]]
    through = f" through {', '.join(jumps)}" if jumps else ""
    yield green("ssh", f"{carrier} to {route.target.where}{through}: {choice.why}")
    unreadable = {line.place: line for hop in route.hops for line in hop.known().unreadable}
    for place, line in unreadable.items():
        yield yellow(
            "known_hosts", f"{place} is skipped: {line.problem}", "Correct or remove that line; ssh skips it too."
        )


def measure(backend: Backend) -> Network:
    """Measure round trip, clock skew and one stream's throughput; raises ConnectionLostError if nothing comes."""
    return measure_clock(backend).model_copy(update={"bytes_per_second": _throughput(backend)})


def measure_clock(backend: Backend) -> Network:
    """Measure only the round trip and the clock skew; raises ConnectionLostError if nothing comes."""
    best = min(_exchanges(backend), key=lambda exchange: exchange.seconds)
    return Network(round_trip_seconds=best.seconds, clock_skew_seconds=best.skew)


def _python(backend: Backend, program: str) -> Process:
    return backend.open(python_program(backend.host, program, "-I", "-S"))


def _exchanges(backend: Backend) -> list[Exchange]:
    """Return several exchanges; the first one includes Python's start, the shortest one is the round trip."""
    process = _python(backend, CLOCK)
    try:
        return [_exchange(process) for _ in range(EXCHANGES)]
    finally:
        process.close()


def _exchange(process: Process) -> Exchange:
    sent_at = time.time()
    started = time.perf_counter()
    process.write(b"\n")
    clock = _answer(process)
    seconds = time.perf_counter() - started
    return Exchange(seconds, clock - (sent_at + seconds / 2))


def _answer(process: Process) -> float:
    """Return the host's time; lines without a number are noise of a login shell."""
    buffer = b""
    ends_at = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < ends_at and len(buffer) < NOISE_BYTES:
        try:
            chunk = process.read(4096, ANSWER_SECONDS)
        except TimeoutError:
            break
        if not chunk:
            break
        buffer += chunk
        if buffer.endswith(b"\n") and (number := _number(buffer.splitlines()[-1])) is not None:
            return number
    raise ConnectionLostError("The host's Python did not answer.", remedy="Check `python` for this host.")


def _number(line: bytes) -> float | None:
    try:
        number = float(line)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _throughput(backend: Backend) -> float | None:
    """Return bytes per second, counted from the first byte, so that Python's start on the host does not count."""
    process = _python(backend, SOURCE)
    try:
        first = process.read(1 << 16, ANSWER_SECONDS)
        return _rate(process) if first else None
    except TimeoutError:
        return None
    finally:
        process.close()


def _rate(process: Process) -> float | None:
    started, received = time.perf_counter(), 0
    while (left := SAMPLE_SECONDS - (time.perf_counter() - started)) > 0:
        try:
            chunk = process.read(1 << 20, left)
        except TimeoutError:
            break
        if not chunk:
            break
        received += len(chunk)
    elapsed = time.perf_counter() - started
    return received / elapsed if received and elapsed else None
