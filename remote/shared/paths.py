"""Every path inside a host's working directory; no other module joins one by hand.

Layout (created on demand, directories 0700, files 0600):

    <workdir>/payloads/<digest>/remote/          current -> <digest>
    <workdir>/servers/<name>/state.json, logs/<name>_v1.log …, current -> the newest
    <workdir>/runs/<run>/…                       see `RunPaths`
    <workdir>/jobs/<name>/…                      see `JobPaths`; only on a cluster
    <workdir>/lock
    <workdir>/recorder/…                         see `RecorderPaths`
    <workdir>/trail.jsonl                        who changed what here, see `remote.shared.trail`
    <workdir>/models.json                        digests of models' files, so that a plan samples each only once
    <workdir>/sglang-cache/<digest>.json         what the host's SGLang answered, see `remote.attach.cache`
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from remote.shared.errors import UsageError

DUMP_MARKER = ".roost"
"""A file in a dump directory that says that its contents are Roost's to remove."""

ASSIGNMENT_FILE = "assignment.json"
TOKENS_FILE = "tokens.safetensors"
"""The two files of a host's share of a run."""

CONVERSATIONS_FILE = "conversations.jsonl"
"""For answers, a third file of the share: a line for each record, empty if the first answer is the only one."""

ROWS_FILE = "rows.json"
"""In the folder of a published chunk: the ledger's rows of its records."""

PLAN_FILE = "plan.json"
"""The whole plan, kept beside the share, so that a plan survives the loss of the laptop."""

COMPRESSED_SUFFIX = ".rz"
"""Suffix of a compressed shard (`remote.shared.codec`)."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_safe_name(name: str) -> bool:
    """Return whether `name` can be one path component on every system."""
    return _NAME.fullmatch(name) is not None


def safe_name(name: str, what: str) -> str:
    """Return `name` if it can be one path component on every system; raise UsageError, which names `what`, if not."""
    if not is_safe_name(name):
        raise UsageError(
            f"{what} {name!r} cannot be used as a folder name.",
            remedy="Use letters, digits, '.', '_' and '-', starting with a letter or a digit.",
        )
    return name


@dataclass(frozen=True)
class Workdir:
    """The host's working directory."""

    root: Path

    @property
    def payloads(self) -> Path:
        return self.root / "payloads"

    @property
    def servers(self) -> Path:
        return self.root / "servers"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def trail(self) -> Path:
        """The host's trail of changing commands (`remote.shared.trail`)."""
        return self.root / "trail.jsonl"

    @property
    def model_digests(self) -> Path:
        """Digests of models' files, by path, size and modification time."""
        return self.root / "models.json"

    @property
    def sglang_cache(self) -> Path:
        """Answers of the host's SGLang, kept by `remote.attach.cache`."""
        return self.root / "sglang-cache"

    @property
    def recorder(self) -> RecorderPaths:
        return RecorderPaths(self.root / "recorder")

    def server(self, name: str) -> ServerPaths:
        return ServerPaths(self.servers / safe_name(name, "server name"))

    def run(self, name: str) -> RunPaths:
        return RunPaths(self.runs / safe_name(name, "run name"))

    @property
    def jobs(self) -> Path:
        """On a cluster: one folder for each job that runs a single verb."""
        return self.root / "jobs"

    def job(self, name: str) -> JobPaths:
        return JobPaths(self.jobs / safe_name(name, "job name"))

    def run_names(self) -> list[str]:
        """Return the sorted names of the runs that have a folder here; other entries of `runs/` are ignored."""
        if not self.runs.is_dir():
            return []
        return sorted(path.name for path in self.runs.iterdir() if path.is_dir() and is_safe_name(path.name))


@dataclass(frozen=True)
class ServerPaths:
    """One server's folder: its state, and a log for every start."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def current_log(self) -> Path:
        return self.logs / "current"

    @property
    def written_logs(self) -> Path:
        """The paths, one on each line, of this server's logs in other folders (`log_dir`)."""
        return self.root / "logs-elsewhere"

    @property
    def config(self) -> Path:
        """The `--config` file of the running start, with settings that no process list may show."""
        return self.root / "sglang.yaml"

    @property
    def authorization(self) -> Path:
        """The HTTP header that every request to the running start needs; `curl -H @FILE` reads it."""
        return self.root / "authorization"

    @property
    def rendezvous(self) -> Path:
        """The file at which the ranks of a server on one host meet during its start, instead of at a port."""
        return self.root / "rendezvous"

    @property
    def grace(self) -> Path:
        """Seconds that `stop` gives the server to end; its supervisor reads them."""
        return self.root / "grace"

    @property
    def supervisor_log(self) -> Path:
        """The supervisor's own output, of all starts."""
        return self.root / "supervisor.log"

    @property
    def history(self) -> Path:
        return self.root / "history.sqlite"

    def log(self, start: int) -> Path:
        return self.logs / f"{self.root.name}_v{start}.log"


@dataclass(frozen=True)
class JobPaths:
    """A job that runs a single verb on a cluster's node, in the folder that node and login host share."""

    root: Path

    @property
    def script(self) -> Path:
        return self.root / "job.sh"

    @property
    def task(self) -> Path:
        """The work of the node, a `JobTask`; the node reads it."""
        return self.root / "task.json"

    @property
    def ledger(self) -> Path:
        """A copy of the run's ledger, because only the login host opens the ledger itself."""
        return self.root / "ledger.sqlite"

    @property
    def number(self) -> Path:
        """The job's number in the scheduler's queue; exists once the job is submitted."""
        return self.root / "number"

    @property
    def log(self) -> Path:
        """The job's log for people."""
        return self.root / f"{self.root.name}.log"

    @property
    def ended(self) -> Path:
        """The job's end, a `remote.engines.single.End`, once the login host has noticed it."""
        return self.root / "ended.json"

    @property
    def told(self) -> Path:
        """Exists once a person has been shown the outcome."""
        return self.root / "told"

    def lines(self, attempt: int) -> Path:
        """Return the file with an attempt's JSON lines: progress, items, and its result or error."""
        return self.root / f"lines.{attempt}.jsonl"

    def newest_lines(self) -> Path | None:
        """Return the file with the lines of the newest attempt; None before the first attempt has begun."""
        attempts = [int(path.name.split(".")[1]) for path in self.root.glob("lines.*.jsonl")]
        return self.lines(max(attempts)) if attempts else None


@dataclass(frozen=True)
class RecorderPaths:
    """The files of the one process that keeps this host's histories (`remote.history`)."""

    root: Path

    @property
    def lock(self) -> Path:
        """Locked by the recorder while it runs."""
        return self.root / "lock"

    @property
    def settings(self) -> Path:
        """The recorder's settings: whom to notify, when a run counts as stalled, when to stop idle servers."""
        return self.root / "settings.json"

    @property
    def memory(self) -> Path:
        """The recorder's last reading and unsent notifications, from which its successor continues."""
        return self.root / "memory.json"

    @property
    def log(self) -> Path:
        return self.root / "recorder.log"


@dataclass(frozen=True)
class RunPaths:
    """One run on one host: its assignments, ledger and shards."""

    root: Path
    round: int = 0
    """The round of a run on a cluster, which decides on `queue`: records that were opened again get a queue anew."""

    @property
    def assignments(self) -> Path:
        """One folder for each epoch: `<epoch>/assignment.json` and `<epoch>/tokens.safetensors`."""
        return self.root / "assignments"

    def assignment(self, epoch: int) -> Path:
        return self.assignments / str(epoch)

    def claims(self, epoch: int, pool: str) -> Path:
        """The claims on chunks of this host's share (`share`), or of a lot that it was given."""
        return self.root / "leases" / str(epoch) / "claims" / pool

    def lots(self, epoch: int) -> Path:
        """Records that came from other hosts: `<name>/lot.json` and `<name>/tokens.safetensors`."""
        return self.root / "leases" / str(epoch) / "lots"

    @property
    def replicas(self) -> Path:
        """The specification of a run's replicas on a cluster, a `remote.shared.messages.replica.ReplicaSpec`."""
        return self.root / "replicas.json"

    @property
    def secrets(self) -> Path:
        """The values of the servers' secret variables on a cluster, while the replicas of the round work."""
        return self.root / (f"secrets.{self.round}.json" if self.round else "secrets.json")

    @property
    def queue(self) -> Path:
        """The queue from which replicas take chunks of the run, on the cluster's shared file system."""
        return self.root / (f"queue.{self.round}" if self.round else "queue")

    @property
    def round_here(self) -> Path:
        """On a cluster's node: the number of the round whose records this folder has."""
        return self.root / "round"

    @property
    def token(self) -> Path:
        """What a node must be able to read before anything is submitted, so that it sees this very folder."""
        return self.jobs / "token"

    @property
    def over(self) -> Path:
        """Exists once every chunk of the queue is published."""
        return self.queue / "over"

    @property
    def jobs(self) -> Path:
        """The files of the cluster's engine for the run: the submission, and the replicas' logs (`*.log`)."""
        return self.root / "jobs"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def shards(self) -> Path:
        return self.root / "shards"

    def shard(self, index: int) -> Path:
        return self.shards / shard_name(index)

    @property
    def log(self) -> Path:
        return self.root / "extract.log"

    @property
    def tokenizer(self) -> Path:
        """For a run of answers: the model's tokenizer as one file."""
        return self.root / "tokenizer.json"

    @property
    def state(self) -> Path:
        """The extractor's process and progress, as `remote.shared.messages.extract.ExtractorState`."""
        return self.root / "state.json"

    @property
    def history(self) -> Path:
        return self.root / "history.sqlite"

    @property
    def lock(self) -> Path:
        """Locked by the run's one extractor while it runs."""
        return self.root / "extract.lock"

    @property
    def control(self) -> Path:
        """The latest request to the extractor (`pause`, `resume`, `stop`), which it reads continually."""
        return self.root / "control.json"


def shard_name(index: int) -> str:
    """Return the file name of a record's shard, `hs_{i}.safetensors`, for which speculators 0.8+ looks."""
    return f"hs_{index}.safetensors"
