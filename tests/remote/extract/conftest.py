"""A host in a folder: a workdir, a stand-in server, an assignment."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from remote.context import Context
from remote.extract import assignment as assignments
from remote.extract import backlog
from remote.extract.launch import run_here
from remote.extract.ledger import Ledger
from remote.messages.extract import Assignment, ExtractorState, Identity
from remote.paths import RunPaths, Workdir
from remote.report import Report
from tests.remote.extract.standin import Config

PATIENCE_SECONDS = 60.0
RUN = "trial"


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll until `condition` holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE_SECONDS:g} s"
        time.sleep(0.01)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class StandInProcess:
    """One stand-in server as a process; its configuration can change, its port cannot."""

    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    config: Config = field(default_factory=lambda: Config("", "", 0))

    def start(self) -> None:
        """Start the process; it serves once `configure` was called."""
        script = Path(__file__).with_name("standin.py")
        self.process = subprocess.Popen([sys.executable, str(script), str(self.port)], start_new_session=True)

    def configure(self, config: Config) -> None:
        """Be this server: returns once its state file says ready."""
        self.config = config
        until(self._configured, "a stand-in that listens")

    def kill(self) -> None:
        """End it as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def restart(self) -> None:
        """Come back as the next life of the same server."""
        self.kill()
        self.start()
        self.configure(replace(self.config, start=self.config.start + 1))

    def seen(self) -> dict[str, int]:
        """Requests this life has had, a record index."""
        return dict(self._get("/seen")["seen"])

    def aborted(self) -> list[str]:
        """Request ids that were taken back."""
        return list(self._get("/seen")["aborted"])

    def set_faults(self, faults: dict[str, list[str]]) -> None:
        """Other faults from now on, in this life and later ones."""
        self.config.faults = faults
        self._post("/faults", faults)

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def _post(self, path: str, body: object) -> None:
        url = f"http://127.0.0.1:{self.port}{path}"
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=10).close()

    def _configured(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the stand-in ended"
        try:
            self._post("/configure", asdict(self.config))
        except OSError:
            return False
        return True


class Pool:
    """Stand-in processes that serve one test after another: starting one takes a second."""

    def __init__(self) -> None:
        self._idle: list[StandInProcess] = []
        self._busy: list[StandInProcess] = []

    def take(self) -> StandInProcess:
        """A process that nobody else uses."""
        server = self._idle.pop() if self._idle else StandInProcess()
        if server.process is None:
            server.start()
        self._busy.append(server)
        return server

    def give_back(self) -> None:
        """After a test: those that still live serve the next one."""
        for server in self._busy:
            if server.process is not None and server.process.poll() is None:
                self._idle.append(server)
            else:
                server.kill()
        self._busy.clear()

    def close(self) -> None:
        """End them all."""
        for server in [*self._idle, *self._busy]:
            server.kill()


@dataclass
class Host:
    """A workdir with everything an extraction needs."""

    workdir: Workdir
    dump_dir: Path
    pool: Pool

    @property
    def paths(self) -> RunPaths:
        return self.workdir.run(RUN)

    @property
    def context(self) -> Context:
        return Context(self.workdir, Report(sys.stderr))

    def serve(self, name: str = "main", **config: Any) -> StandInProcess:
        """Start a stand-in."""
        server = self.pool.take()
        settings = {"workdir": str(self.workdir.root), "dump_dir": str(self.dump_dir), "port": server.port}
        server.configure(Config(name=name, **{**settings, **config}))
        return server

    def assign(self, lengths: list[int], epoch: int = 1, first: int = 0, **fields: Any) -> Path:
        """Give the host an assignment of records first, first + 1, … with such lengths; returns its folder."""
        return write_assignment(self.paths.assignment(epoch), lengths, epoch=epoch, first=first, **fields)

    def extract(self, **options: Any) -> ExtractorState:
        """Run the extractor in this process to its end."""
        return run_here(self.paths, self.context, **options)

    def states(self) -> dict[int, str]:
        """The ledger's states, a record index."""
        with Ledger(self.paths.ledger) as ledger:
            return {index: state for index, (state, _, _) in ledger.states().items()}

    def causes(self) -> dict[str, int]:
        """The ledger's causes of quarantine."""
        with Ledger(self.paths.ledger) as ledger:
            return ledger.causes()

    def dumps(self) -> list[str]:
        """What lies in the dump directory."""
        return sorted(path.name for path in self.dump_dir.iterdir() if path.name != ".roost")


def identity(**fields: Any) -> Identity:
    """The stand-in's identity."""
    values: dict[str, Any] = {
        "dataset": "d" * 32,
        "tokenizer": "t" * 32,
        "model": "standin@0",
        "boundaries": [1, 3, 6],
        "final": "pre",
        "hidden_size": 64,
        "dtype": "F32",
    }
    return Identity(**{**values, **fields})


def tokens_of(index: int, length: int) -> np.ndarray:
    """The token ids of a record, from its index alone."""
    return np.random.default_rng(index).integers(0, 1000, length).astype(np.int32)


def write_assignment(folder: Path, lengths: list[int], *, epoch: int = 1, first: int = 0, **fields: Any) -> Path:
    """Write an assignment folder as the verb `assign` does."""
    folder.mkdir(parents=True)
    tokens = [tokens_of(first + place, length) for place, length in enumerate(lengths)]
    joined = np.concatenate([np.zeros(0, np.int32), *tokens]).astype(np.int32)
    arrays = {
        "index": np.arange(first, first + len(lengths), dtype=np.int64),
        "offset": np.cumsum([0, *lengths], dtype=np.int64),
        "token_ids": joined,
    }
    save_file(arrays, folder / assignments.TOKENS)
    values: dict[str, Any] = {
        "run": RUN,
        "host": "here",
        "epoch": epoch,
        "identity": identity(),
        "records": len(lengths),
        "tokens": int(joined.size),
        "min_free_bytes": 0,
        "parity_rate": 0.0,
        "vocab_size": 1000,
        "context_length": 4096,
        "request_timeout_seconds": 30.0,
    }
    description = Assignment(**{**values, **fields})
    (folder / assignments.DESCRIPTION).write_text(description.model_dump_json())
    return folder


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Warm stand-ins."""
    made = Pool()
    yield made
    made.close()


@pytest.fixture
def host(tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """An empty host whose retries don't dawdle; its servers are given back with the test's end."""
    monkeypatch.setattr(backlog, "RETRY_SECONDS", 0.01)
    dump_dir = Path(tempfile.mkdtemp(prefix="roost-test-", dir="/dev/shm"))
    made = Host(Workdir(tmp_path / "it's a host"), dump_dir, pool)
    made.workdir.root.mkdir()
    try:
        yield made
    finally:
        pool.give_back()
        shutil.rmtree(dump_dir, ignore_errors=True)
