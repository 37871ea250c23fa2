"""A host in a folder: a workdir, a stand-in server, an assignment."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from remote.context import Context
from remote.report import Report
from remote.shared.errors import RoostError
from remote.shared.messages.extract import Assignment, ExtractorState
from remote.shared.messages.run import RunIdentity
from remote.shared.paths import ASSIGNMENT_FILE, TOKENS_FILE, RunPaths, Workdir
from remote.shared.shard.sessions import PREFIX
from remote.work import backlog
from remote.work.launch import run_here
from remote.work.ledger import Ledger
from tests.identities import run_identity
from tests.remote.extract.standin import Config
from tests.remote.extract.standin_process import Pool, StandInProcess

RUN = "trial"


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
        """What lies in the dump directory, sessions that registered aside."""
        names = (path.name for path in self.dump_dir.iterdir())
        return sorted(name for name in names if name != ".roost" and not name.startswith(PREFIX))


def identity(**fields: Any) -> RunIdentity:
    """The stand-in's identity."""
    return run_identity(**{"name": RUN, "hidden_size": 64, "dtype": "F32", **fields})


def tokens_of(index: int, length: int, vocabulary: int = 1000) -> np.ndarray:
    """The token ids of a record, from its index alone."""
    return np.random.default_rng(index).integers(0, vocabulary, length).astype(np.int32)


def write_assignment(
    folder: Path, lengths: list[int], *, epoch: int = 1, first: int = 0, vocabulary: int = 1000, **fields: Any
) -> Path:
    """Write an assignment folder as the verb `assign` does."""
    folder.mkdir(parents=True)
    tokens = [tokens_of(first + place, length, vocabulary) for place, length in enumerate(lengths)]
    joined = np.concatenate([np.zeros(0, np.int32), *tokens]).astype(np.int32)
    arrays = {
        "index": np.arange(first, first + len(lengths), dtype=np.int64),
        "offset": np.cumsum([0, *lengths], dtype=np.int64),
        "token_ids": joined,
    }
    save_file(arrays, folder / TOKENS_FILE)
    values: dict[str, Any] = {
        "host": "here",
        "epoch": epoch,
        "identity": identity(),
        "ranges": [(first, first + len(lengths))] if lengths else [],
        "records": len(lengths),
        "tokens": int(joined.size),
        "min_free_bytes": 0,
        "parity_rate": 0.0,
        "vocab_size": vocabulary,
        "context_length": 4096,
        "request_timeout_seconds": 30.0,
    }
    description = Assignment(**{**values, **fields})
    (folder / ASSIGNMENT_FILE).write_text(description.model_dump_json())
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


class Running:
    """An extractor in a thread, so that the test can meddle meanwhile."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.state: ExtractorState | None = None
        self.error: RoostError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.state = self._host.extract()
        except RoostError as error:
            self.error = error

    def end(self) -> ExtractorState:
        """Wait for its end, which must be a good one."""
        self._thread.join()
        assert self.error is None, self.error
        assert self.state is not None
        return self.state


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[[Host], Running]:
    """Start extractors in threads (signal handlers belong to the main thread alone)."""
    monkeypatch.setattr("asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler", lambda *_: None)
    return Running
