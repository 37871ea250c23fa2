"""The files in `<run>/jobs` through which the login host, the controller and the actors tell each other of a run.

Standard library only, because Ray's Python has nothing of Roost, and Ray itself brings this code to nodes that do not
see the shared folder. Each file is replaced by one rename. Each replica's file has one writer, the replica's actor.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

SAID = "roost: "
"""The beginning of a line that is meant for the person who submitted the job."""
REFUSED = 2
"""Exit code of a controller or replica that can never work with these settings."""
NO_REPLICA_LEFT = 10
"""Exit code of a controller whose replicas all failed; Ray itself uses other codes when it ends a driver."""
WAITS, RUNS, OVER, STOPPED, FAILED, LEFT_OUT = "waits", "runs", "over", "stopped", "failed", "refused"
ENDED = (OVER, STOPPED, FAILED, LEFT_OUT)


@dataclass(frozen=True)
class Pool:
    """`pool.json`: the settings of the submitted job."""

    job: str
    """The submission's id on Ray's job server."""
    run: str
    payload: str
    chunks: int
    """The number of chunks of the whole run."""
    submitted_at: float
    address: str
    least: int
    most: int
    bundle: dict[str, float]
    join_seconds: float
    python: str
    scratch: str

    @property
    def namespace(self) -> str:
        """The namespace of the run's actors in Ray."""
        return f"roost-{self.run}"

    def group(self, name: str) -> str:
        """Return the name of a replica's placement group."""
        return f"{self.namespace}.{name}"

    @property
    def slots(self) -> list[str]:
        """The names of the replicas."""
        return [f"r{number}" for number in range(self.most)]


@dataclass
class Slot:
    """`replicas/<name>.json`: the state of a replica, from its first attempt to its end, as its actor writes it."""

    name: str
    state: str = WAITS
    node: str = ""
    node_id: str = ""
    attempt: int = -1
    failures: int = 0
    cause: str = ""
    """The cause of the latest failure, or of the end."""
    since: float = 0.0


@dataclass(frozen=True)
class Folder:
    """The engine's files in `<run>/jobs`."""

    root: Path
    pool_file: Path = field(init=False)
    stop: Path = field(init=False)
    """Exists if the replicas were told to stop."""
    mark: Path = field(init=False)
    """The file with a random word, which only machines that share this folder can read."""
    accepted: Path = field(init=False)
    """The file with the id of the newest job whose controller accepted the run."""

    def __post_init__(self) -> None:
        for name, path in {"pool_file": "pool.json", "stop": "stop", "mark": "mark", "accepted": "accepted"}.items():
            object.__setattr__(self, name, self.root / path)

    @property
    def run(self) -> Path:
        """The run's own folder."""
        return self.root.parent

    @property
    def is_over(self) -> bool:
        """Return whether every chunk of the run is published."""
        return (self._queue / "over").exists()

    @property
    def _queue(self) -> Path:
        """Return the queue of the round on which the run's replicas work, as `RunPaths.queue` does."""
        try:
            number = json.loads((self.run / "replicas.json").read_text()).get("round", 0)
        except (OSError, ValueError):
            number = 0
        return self.run / (f"queue.{number}" if number else "queue")

    def has_accepted(self, job: str) -> bool:
        """Return whether this job's controller accepted the run."""
        return self.accepted.exists() and self.accepted.read_text() == job

    def published(self) -> int:
        """Return the number of published chunks."""
        return sum(1 for path in self._queue.glob("published/*/*") if path.name.isdecimal())

    def pool(self) -> Pool:
        """Return the settings of the submitted job; raise OSError or ValueError if they cannot be read here."""
        return Pool(**json.loads(self.pool_file.read_text()))

    def keep_pool(self, pool: Pool) -> None:
        """Write the settings of the submitted job."""
        write(self.pool_file, json.dumps(asdict(pool), indent=1))

    def sees(self, mark: str) -> bool:
        """Return whether this machine sees the folder in which the run was submitted."""
        try:
            return self.mark.read_text() == mark
        except OSError:
            return False

    def slot(self, name: str) -> Slot:
        """Return a replica's state; a replica without a file waits for its first attempt."""
        try:
            return Slot(**json.loads((self.root / "replicas" / f"{name}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return Slot(name)

    def slots(self) -> list[Slot]:
        """Return the state of every replica that has run."""
        names = sorted((path.stem for path in self.root.glob("replicas/r*.json")), key=lambda name: int(name[1:]))
        return [self.slot(name) for name in names]

    def keep(self, slot: Slot) -> None:
        """Write a replica's state."""
        write(self.root / "replicas" / f"{slot.name}.json", json.dumps(asdict(slot), indent=1))

    def forget_ended(self) -> None:
        """Forget replicas that ended and the order to stop, because a new submission starts every replica again."""
        self.stop.unlink(missing_ok=True)
        for slot in self.slots():
            if slot.state in ENDED:
                (self.root / "replicas" / f"{slot.name}.json").unlink(missing_ok=True)

    def next_attempt(self, name: str) -> int:
        """Return a number that no attempt of this replica had before, even if two actors ask at the same time."""
        folder = self.root / "attempts"
        folder.mkdir(mode=0o700, exist_ok=True)
        number = 1 + max((int(path.suffix[1:]) for path in folder.glob(f"{name}.*")), default=-1)
        while True:
            with suppress(FileExistsError):
                os.close(os.open(folder / f"{name}.{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                return number
            number += 1


def write(path: Path, text: str) -> None:
    """Write a small file as a whole, with one rename."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    aside = path.with_name(f".aside-{os.getpid()}-{path.name}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)


def in_words(bundle: dict[str, float]) -> str:
    """Return the bundle as text, such as `8 GPU, 1 CPU`."""
    return ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
