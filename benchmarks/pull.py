"""A pull against what people use: MB/s and CPU seconds a GB, on loopback and behind 60 ms.

Run under the laptop's Python: `python -m benchmarks.pull [--rounds N] [--folder DIR] [--before CHECKOUT]`. Starts a
private sshd, and for the slow link a userspace proxy (30 ms each way). Contenders, interleaved round by round, another
one first in each round, medians:

- ours: the streams, landing, hashing, repair, fsync and ledger of `inv pull`, once its command has started
- before (`--before CHECKOUT`): the same of another checkout; both pull in a process of their own, which is started
  before the clock
- rsync -aW, scp, ssh cat: OpenSSH's own, the same cipher (aes128-gcm); a connection a file for cat
- fabric get: a connection for all files

What was read is in the page cache (tmpfs by default), every contender's files are fsynced before the clock stops,
and ours alone verifies them. CPU seconds are those of both ends, the sshd included. Rows behind the delay are
shorter, and what takes minutes is run once (`ONCE`) or with fewer files (`FEWER`).
Writes `benchmarks/results/pull-<date>.json`, replacing the links that were measured.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import xxhash
from fabric import Config, Connection

from benchmarks.delay import delayed
from hosts.inventory.model import Host
from hosts.practice.ports import ADDRESS
from hosts.practice.sshd import PrivateSshd
from hosts.transport.openssh import ssh_command
from remote.shared.messages.extract import Delivered, IndicesResult, ShardRow
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.transfer import Source, Wish
from remote.shared.shard.layout import Layout
from remote.shared.transfer.bounds import Bounds
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.engine import Engine
from remote.shared.transfer.origin import Offer
from remote.shared.transfer.stream import SOURCE

IDENTITY = RunIdentity(
    name="run",
    nonce="0" * 16,
    dataset="d",
    tokenizer="t",
    model="m",
    model_path="/m",
    boundaries=(2, 18, 33, 36),
    final="pre",
    hidden_size=4096,
    dtype="BF16",
)
MB = 1_000_000
ROUND_TRIP_SECONDS = 0.060
LOOPBACK = {"1 x 1 GiB": (1, 1 << 30), "8 x 135 MB": (8, 135 * MB), "2,000 x 512 KiB": (2000, 512 << 10)}
DELAYED = {"1 x 1 GiB": (1, 1 << 30), "2 x 135 MB": (2, 135 * MB), "200 x 512 KiB": (200, 512 << 10)}
LINKS = {"loopback": (LOOPBACK, 0.0), "60 ms": (DELAYED, ROUND_TRIP_SECONDS / 2)}
ONCE = {("rsync", "60 ms", "1 x 1 GiB"), ("scp", "60 ms", "1 x 1 GiB")}
"""Besides fabric, which runs once everywhere; the other single stream there, ssh cat, runs in every round."""
FEWER = {("fabric", "2,000 x 512 KiB"): 200, ("fabric", "200 x 512 KiB"): 40, ("scp", "200 x 512 KiB"): 40}
"""Files that a slow contender gets of a row instead of all."""


@dataclass(frozen=True)
class Lane:
    """What a contender works with."""

    host: Host
    ssh: list[str]
    source: Path
    target: Path
    files: list[Path]
    rows: list[ShardRow]


@dataclass(frozen=True)
class Measured:
    """One run."""

    megabytes_per_second: float
    cpu_seconds_per_gb: float
    note: str = ""


@dataclass
class Ledgered:
    """The host, whose ledger was read already."""

    source: Source
    rows: list[ShardRow]

    def offers(self, after: int) -> Offer:
        return Offer(self.rows, len(self.rows), "complete")

    def free(self, records: list[Delivered]) -> IndicesResult:
        raise NotImplementedError


def ours(lane: Lane) -> str:
    """The engine with one host; it finds its number of streams itself."""
    sender = [sys.executable, "-I", "-S", "-c", SOURCE]
    command = [*lane.ssh, shlex.join(sender)]
    source = Source(name="host", sender=command, codec_sender=command, root=str(lane.source))
    bounds = Bounds(IDENTITY, len(lane.rows), [row.rows for row in lane.rows])
    with Destination(lane.target) as destination, Engine(destination, Wish(run="run"), bounds) as engine:
        tally = engine.bring(Ledgered(source, lane.rows))
    assert tally.delivered == len(lane.rows), tally
    return f"{tally.streams} streams"


class Puller:
    """A process that pulls a lane with a checkout's `ours` when it is told to."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self._process = subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE, str(checkout)],
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(checkout)},
        )

    @property
    def commit(self) -> str:
        describe = ["git", "-C", str(self._checkout), "describe", "--always", "--dirty"]
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()

    def cpu_seconds(self) -> float:
        """Of the process and its ended children."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system + times.children_user + times.children_system

    def prepare(self, lane: Lane) -> None:
        """Let the process know the lane before the clock starts: reading 2,000 rows is no part of a pull."""
        rows = [row.model_dump() for row in lane.rows]
        self._say(json.dumps({"ssh": lane.ssh, "source": str(lane.source), "target": str(lane.target), "rows": rows}))

    def __call__(self, lane: Lane) -> str:
        return self._say("go")

    def _say(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"The process of {self._checkout} ended with {self._process.wait()}.")
        return said.strip()

    def close(self) -> None:
        """End the process by its stdin's end."""
        self._process.communicate()


ELSEWHERE = """
import json, sys
from pathlib import Path
from benchmarks import pull
assert Path(pull.__file__).is_relative_to(sys.argv[1]), pull.__file__
for line in sys.stdin:
    order = json.loads(line)
    rows = [pull.ShardRow(**{k: v for k, v in row.items() if k in pull.ShardRow.model_fields}) for row in order["rows"]]
    lane = pull.Lane(None, order["ssh"], Path(order["source"]), Path(order["target"]), [], rows)
    print("ready", flush=True)
    assert next(sys.stdin).strip() == "go"
    print(pull.ours(lane), flush=True)
"""
"""What the process of another checkout runs. Its first argument is the checkout."""


def rsync(lane: Lane) -> str:
    listing = "\0".join(file.name for file in lane.files)
    shell = shlex.join(lane.ssh[:-1])
    command = ["rsync", "-aW", "--fsync", "--from0", "--files-from=-", "-e", shell]
    subprocess.run([*command, f"{lane.ssh[-1]}:{lane.source}/", str(lane.target)], input=listing.encode(), check=True)
    return ""


def scp(lane: Lane) -> str:
    """The whole folder: scp opens a connection for every file that is named."""
    subprocess.run(["scp", "-qr", *lane.ssh[1:-1], f"{lane.ssh[-1]}:{lane.source}/.", str(lane.target)], check=True)
    return _fsync(lane)


def cat(lane: Lane) -> str:
    for file in lane.files:
        with (lane.target / file.name).open("wb") as out:
            subprocess.run([*lane.ssh, shlex.join(["cat", str(file)])], stdout=out, check=True)
    return _fsync(lane)


def fabric(lane: Lane) -> str:
    key = {"key_filename": lane.host.identity_file, "look_for_keys": False}
    connection = Connection(ADDRESS, port=lane.host.ssh_port, connect_kwargs=key, config=Config(lazy=True))
    connection.client.load_system_host_keys(str(lane.host.known_hosts))
    with connection:
        for file in lane.files:
            connection.get(str(file), str(lane.target / file.name))
    return _fsync(lane)


def _fsync(lane: Lane) -> str:
    for file in lane.files:
        with (lane.target / file.name).open("rb") as stream:
            os.fsync(stream.fileno())
    return ""


CONTENDERS: dict[str, Callable[[Lane], str]] = {"rsync": rsync, "scp": scp, "ssh cat": cat, "fabric": fabric}
"""Besides the checkouts, which `main` adds."""


def cpu_seconds(sshd: int, contend: Callable[[Lane], str]) -> float:
    """Of this process, its ended children, everything that the sshd has waited for, and the process of a `Puller`."""
    mine = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    server = psutil.Process(sshd)
    deadline = time.monotonic() + 10
    while server.children() and time.monotonic() < deadline:
        time.sleep(0.01)
    times = server.cpu_times()
    mine += contend.cpu_seconds() if isinstance(contend, Puller) else 0.0
    return mine + times.user + times.system + times.children_user + times.children_system


def measure(contend: Callable[[Lane], str], lane: Lane, sshd: int) -> Measured:
    shutil.rmtree(lane.target, ignore_errors=True)
    lane.target.mkdir()
    size = sum(row.size_bytes for row in lane.rows)
    if isinstance(contend, Puller):
        contend.prepare(lane)
    cpu, began = cpu_seconds(sshd, contend), time.perf_counter()
    note = contend(lane)
    seconds = time.perf_counter() - began
    cpu = cpu_seconds(sshd, contend) - cpu
    shutil.rmtree(lane.target)
    return Measured(size / MB / seconds, cpu / (size / 1e9), note)


def rows_of(folder: Path, count: int, size: int) -> list[ShardRow]:
    """Shards of about `size` random bytes, as a host's ledger would list them."""
    folder.mkdir()
    layout = Layout(0, len(IDENTITY.boundaries), IDENTITY.hidden_size, IDENTITY.dtype)
    layout = replace(layout, rows=(size - layout.header_bytes) // (8 + layout.row_bytes))
    size = layout.size
    rows = []
    for index in range(count):
        content = layout.header(IDENTITY.marks) + os.urandom(size - layout.header_bytes)
        (folder / f"hs_{index}.safetensors").write_bytes(content)
        digest = xxhash.xxh3_128_hexdigest(content)
        rows.append(ShardRow(index=index, rows=layout.rows, size_bytes=size, xxh3=digest, epoch=1))
    return rows


def _folder_of(files: list[Path], folder: Path) -> Path:
    """A folder with links to these files alone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in files:
        (folder / file.name).hardlink_to(file)
    return folder


@contextmanager
def _host(folder: Path, one_way_seconds: float) -> Iterator[tuple[Host, int]]:
    """A host behind a private sshd, with a delayed link before it where that is not 0."""
    sshd = PrivateSshd(folder / "etc", folder / "home")
    ref, port = sshd.start()
    try:
        with delayed(port, one_way_seconds) if one_way_seconds else nullcontext(port) as shown:
            (folder / "known_hosts").write_text(sshd.known_hosts_line(shown))
            yield (
                Host(
                    name="host",
                    address=ADDRESS,
                    ssh_port=shown,
                    identity_file=str(sshd.client_key),
                    known_hosts=str(folder / "known_hosts"),
                    ssh_config=str(folder / "none"),
                ),
                ref.pid,
            )
    finally:
        sshd.stop(ref)


def table(
    folder: Path, link: str, shapes: dict[str, tuple[int, int]], rounds: int
) -> Iterator[tuple[str, dict[str, object]]]:
    """All contenders on these rows of one link, row by row."""
    with _host(folder, LINKS[link][1]) as (host, sshd):
        ssh = ssh_command(host, folder)
        for shape, (count, size) in shapes.items():
            source = folder / "source"
            rows = rows_of(source, count, size)
            runs: dict[str, list[Measured]] = {name: [] for name in CONTENDERS}
            names = list(CONTENDERS)
            for turn in range(rounds):
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    contend = CONTENDERS[name]
                    once = name == "fabric" or (name, link, shape) in ONCE
                    if (name == "ssh cat" and count > 100) or (once and turn):
                        continue
                    fewer = rows[: FEWER.get((name, shape), count)]
                    files = [source / f"hs_{row.index}.safetensors" for row in fewer]
                    lane = Lane(host, ssh, source, folder / "target", files, fewer)
                    if name == "scp" and len(fewer) < count:
                        lane = replace(lane, source=_folder_of(files, folder / "fewer"))
                    runs[name].append(measure(contend, lane, sshd))
                    print(shape, name, runs[name][-1], flush=True)
            shutil.rmtree(source)
            row: dict[str, object] = {name: _median(measured) for name, measured in runs.items() if measured}
            if "before" in runs:
                row["ours to before"] = _ratios(runs["ours"], runs["before"])
            yield shape, row


def _median(runs: list[Measured]) -> dict[str, object]:
    rates = [run.megabytes_per_second for run in runs]
    return {
        "MB/s": round(statistics.median(rates), 1),
        "MB/s of each run": [round(rate, 1) for rate in rates],
        "CPU s/GB": round(statistics.median(run.cpu_seconds_per_gb for run in runs), 2),
        "CPU s/GB of each run": [round(run.cpu_seconds_per_gb, 2) for run in runs],
        **({"note": runs[-1].note} if runs[-1].note else {}),
    }


def _ratios(ours: list[Measured], before: list[Measured]) -> dict[str, object]:
    """The medians of the rounds' ratios: two runs of one round had about the same machine."""
    pairs = list(zip(ours, before, strict=True))
    return {
        "MB/s": round(statistics.median(a.megabytes_per_second / b.megabytes_per_second for a, b in pairs), 3),
        "CPU s/GB": round(statistics.median(a.cpu_seconds_per_gb / b.cpu_seconds_per_gb for a, b in pairs), 3),
    }


def _machine(note: str) -> dict[str, object]:
    versions = {
        program: subprocess.run([program, option], capture_output=True, text=True, check=False)
        for program, option in (("ssh", "-V"), ("rsync", "--version"))
    }
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        **{name: (ran.stdout or ran.stderr).splitlines()[0] for name, ran in versions.items()},
        "fabric": importlib.metadata.version("fabric"),
        **({"note": note} if note else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="/dev/shm", help="source and target are in here")
    parser.add_argument("--rows", type=int, default=3, help="only so many rows of each link")
    parser.add_argument("--note", default="", help="about the machine, kept with the result")
    parser.add_argument("--links", nargs="*", choices=LINKS, default=list(LINKS))
    parser.add_argument("--before", type=Path, help="a checkout of an older version, measured beside this one")
    parser.add_argument("--only", nargs="*", default=[], help="only these contenders")
    options = parser.parse_args()
    pullers = {"ours": Puller(Path(__file__).parents[1])}
    if options.before:
        pullers["before"] = Puller(options.before.absolute())
    CONTENDERS.update(pullers)
    if unknown := set(options.only) - set(CONTENDERS):
        parser.error(f"no such contender: {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    for name in set(CONTENDERS) - set(options.only or CONTENDERS):
        del CONTENDERS[name]
    path = Path(__file__).parent / "results" / f"pull-{datetime.date.today().isoformat()}.json"
    result: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
    result["machine"] = _machine(options.note) | {name: puller.commit for name, puller in pullers.items()}
    for title in options.links:
        found: dict[str, object] = {"rounds": options.rounds, "load before": os.getloadavg()[0]}
        result[title] = found
        shapes = dict(list(LINKS[title][0].items())[: options.rows])
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="roost-pull-") as name:
            for shape, row in table(Path(name), title, shapes, options.rounds):
                found |= {shape: row, "load after": os.getloadavg()[0]}
                path.write_text(json.dumps(result, indent=1) + "\n")
    for puller in pullers.values():
        puller.close()
    print(path)


if __name__ == "__main__":
    main()
