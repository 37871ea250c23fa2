"""The fleet for the faults: a laptop, two boxes, a prepared dataset, and the records of an undisturbed run.

Called by the fault suite, in its own namespaces if the machine allows them. The suite itself is the laptop: it makes
the same calls as the tasks, and types `inv` if the laptop is to die. All files are in one temporary folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hosts.commands import extract as extraction
from hosts.commands.answer import Asked
from hosts.commands.answer import plan as plan_answers
from hosts.commands.plan import plan
from hosts.commands.prepare import prepare
from hosts.commands.pull import Pulled, pull
from hosts.fleet import Fleet, Outcome, fleet_of
from hosts.inventory.kept import Kept
from hosts.inventory.load import load_inventory
from hosts.plan.plan import Plan, load, save
from hosts.practice.models import tiny_model
from hosts.practice.paths import PracticePaths
from remote.shared.files import write_whole
from remote.shared.messages.clean import CleanRequest, CleanResult
from remote.shared.messages.dataset import PrepareRequest, Ranges
from remote.shared.messages.run import new_nonce
from remote.shared.messages.server import StopRequest, StopResult
from remote.shared.messages.transfer import Wish
from remote.shared.paths import Workdir
from remote.work.lock import is_locked
from tests.faults import checker
from tests.faults.box import CLONE, Box, is_recorder, is_server, is_sshd

PATTERN_RUN = "undisturbed"
RECORDS = 40
LENGTHS = [8 + number * 7 % 50 for number in range(RECORDS)]
DELAY_SECONDS = 0.1
SLOW_SECONDS = 2.0
SLOW_HIGH_WATER_BYTES = 60_000
"""A slow box's mark: two or three records are in flight, so that most of its share can still move."""
END_SECONDS = 20.0
END_ID = 263
"""`<|end|>` of the tiny models' tokenizer."""
HIGH_WATER_BYTES = 120_000
"""A few records in flight at a time, so that an extraction has a middle."""


@dataclass(frozen=True)
class Shape:
    """The records that a fleet extracts, and the speeds of its two boxes."""

    lengths: list[int]
    delays: dict[str, float]
    """The seconds that each box's server takes for a record."""
    high_water_bytes: int = HIGH_WATER_BYTES


EVEN = Shape(LENGTHS, {"a": DELAY_SECONDS, "b": DELAY_SECONDS})


@dataclass
class FaultFleet:
    """Two boxes with servers, the laptop's folder, and the true content of every record."""

    root: Path
    isolated: bool
    boxes: dict[str, Box] = field(default_factory=dict)
    truth: dict[int, str] = field(default_factory=dict)
    answers: bool = False
    """Whether the boxes answer prompts at present, and runs are runs of answers."""
    _answers_truth: dict[int, str] = field(default_factory=dict)
    uncleaned: list[str] = field(default_factory=list)
    """Runs whose folders are still on the boxes."""

    @property
    def laptop(self) -> Path:
        return self.root / "lap top"

    @property
    def inventory(self) -> Path:
        return self.laptop / "inventory.yaml"

    @property
    def known_hosts(self) -> Path:
        return self.laptop / "known_hosts"

    @contextmanager
    def connected(self, *names: str) -> Iterator[Fleet]:
        """Yield the named hosts, or all hosts, with connections that end with the block."""
        inventory = load_inventory(self.inventory)
        chosen = [host for name, host in inventory.hosts.items() if not names or name in names]
        with fleet_of(inventory, chosen) as fleet:
            yield fleet

    def begin_run(self, run: str, names: tuple[str, ...]) -> None:
        """Plan another run over both boxes or one of them, like the first runs."""
        pattern = PATTERN_RUN if len(names) > 1 else f"only-{names[0]}"
        pattern = f"answers-{pattern}" if self.answers else pattern
        plan = self.plan(pattern)
        identity = plan.identity.model_copy(update={"name": run, "nonce": new_nonce()})
        save(plan.model_copy(update={"identity": identity}), self.plan_file(run))
        if run not in self.uncleaned:
            self.uncleaned.append(run)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """In the block, both boxes answer prompts, and the truth is the result of an undisturbed run of answers."""
        before, servers = self.truth, {name: box.server for name, box in self.boxes.items()}
        model = tiny_model(CLONE, "deepseek_v3", layers=6, dtype="float32")
        try:
            for box in self.boxes.values():
                self._serve_anew(box, {**box.server, "end": END_ID, "model": str(model)})
            self.answers = True
            self._answers_truth = self._answers_truth or self._answered(model)
            self.truth = self._answers_truth
            yield
        finally:
            self.answers, self.truth = False, before
            for name, box in self.boxes.items():
                self._serve_anew(box, servers[name])

    @contextmanager
    def uneven(self, slow: str) -> Iterator[None]:
        """In the block, one box is so slow that its records are worth moving to the other box."""
        box = self.boxes[slow]
        even = box.server
        self._serve_anew(box, {**even, "delay": SLOW_SECONDS, "high_water": SLOW_HIGH_WATER_BYTES})
        try:
            yield
        finally:
            self._serve_anew(box, even)

    def _serve_anew(self, box: Box, server: dict[str, object]) -> None:
        box.signal(signal.SIGKILL, is_server)
        box.server = server
        box.serve()

    def _answered(self, model: Path) -> dict[int, str]:
        """Plan answers over both boxes and over each alone, and answer them undisturbed."""
        source = self.laptop / "prompts.jsonl"
        source.write_text("".join(json.dumps(one) + "\n" for one in _prompts()))
        asked = Asked(
            sampling={"temperature": 0.0, "max_tokens": 24}, inputs=[str(source)], tokenizer=str(model), concurrency=2
        )
        for names in ((), *((name,) for name in self.boxes)):
            pattern = f"answers-only-{names[0]}" if names else f"answers-{PATTERN_RUN}"
            with self.connected(*names) as fleet:
                plan_answers(fleet, pattern, asked)
        self.uncleaned.append(f"answers-{PATTERN_RUN}")
        return _undisturbed(self, f"answers-{PATTERN_RUN}")

    def plan(self, run: str) -> Plan:
        """Return a run's current plan."""
        return load(self.plan_file(run))

    def plan_file(self, run: str) -> Path:
        return Kept(self.laptop).plan(run)

    @property
    def python(self) -> Path:
        """The Python of every host. The inventory has the path `Box.python`, which starts this Python."""
        return PracticePaths(CLONE).engine_python

    def extract(self, run: str, *names: str, delivered: Ranges | None = None) -> extraction.Started:
        """Do what `inv extract --detach` does."""
        with self.connected(*names) as fleet:
            return extraction.start(fleet, run, delivered=delivered)

    def follow(self, run: str) -> dict[str, str]:
        """Wait, as `inv extract` does, until no extractor of the run works; return how each host ended."""
        with self.connected() as fleet:
            ended = extraction.follow(fleet, run, lambda *_: None)
        states = {outcome.host.name: outcome.result.state for outcome in ended}
        return {name: f"{state.status} {state.cause}".strip() for name, state in states.items()}

    def extracts(self, run: str, name: str) -> bool:
        """Return whether an extractor of the run works on a box, by the lock that the extractor holds."""
        return self.boxes[name].is_on and is_locked(Workdir(self.boxes[name].workdir).run(run))

    def pull(self, run: str, destination: Path, *names: str, check: bool = False) -> Pulled:
        """Do what `inv pull` does."""
        with self.connected(*names) as fleet:
            return pull(fleet, Wish(run=run, check=check), str(destination), lambda tallies: lambda: None)

    def inv(self, *words: str) -> subprocess.Popen[str]:
        """Type `inv …` as a process that can be killed, and whose output can be read."""
        argv = [sys.executable, "-m", "invoke", *words, "--inventory", str(self.inventory)]
        return subprocess.Popen(
            argv, cwd=CLONE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run_folder(self, host: str, run: str) -> Path:
        """Return the path at which the suite sees a run's folder on a box."""
        return self.boxes[host].workdir / "runs" / run

    def destination(self, run: str) -> Path:
        return self.root / "delivered" / run

    def heal(self) -> None:
        """Start both boxes again with empty disks and the pattern run, after a trial that failed in its middle."""
        for box in self.boxes.values():
            box.power_off()
            if self.isolated:
                box.empty_disk()
            box.set_python(self.python)
            (box.home / ".bashrc").unlink(missing_ok=True)
            box.power_on()
            box.serve()
        self.trust()
        for name in self.boxes:
            for run in (self.boxes[name].workdir / "runs").glob("trial-*"):
                shutil.rmtree(run)
        self.uncleaned.clear()
        self.restore_pattern()

    def clean(self) -> list[str]:
        """Clean every trial's run as `inv clean` does; return the files that were not removed."""
        left: list[str] = []
        for name, box in self.boxes.items():
            runs = [run for run in self.uncleaned if self.run_folder(name, run).exists()]
            if runs:
                with self.connected(name) as fleet:
                    (cleaned,) = _clean(fleet, runs)
                left += [] if cleaned.error is None else [f"{name}: {cleaned.error}"]
            for run in runs or self.uncleaned[-1:]:
                left += checker.leftovers(box.workdir, box.ramdisk / "sglang_hs", run)
        self.uncleaned.clear()
        # What a killed server had aside is swept by its next start, or by inv stop at the suite's end.
        return [path for path in left if "/sglang_hs/.aside-" not in path]

    def end(self) -> list[str]:
        """Stop and clean everything as `inv stop` and `inv clean` do; return what is still on the boxes."""
        left = [f"{path}, before inv stop" for path in self.clean()]
        with self.connected() as fleet:
            stopped = fleet.call("stop", StopRequest(grace_seconds=5.0), StopResult)
            cleaned = _clean(fleet, [PATTERN_RUN])
        left += [f"{one.host.name}: {one.error}" for one in stopped if one.error is not None]
        left += [f"{one.host.name}: {one.error}" for one in cleaned if one.error is not None]
        for box in self.boxes.values():
            left += _processes_left(box)
            left += checker.leftovers(box.workdir, box.ramdisk / "sglang_hs", PATTERN_RUN)
        return left

    def restore_pattern(self) -> None:
        """Put the undisturbed run's records on both boxes again."""
        for name in self.boxes:
            kept, run = self.root / "kept" / name, self.run_folder(name, PATTERN_RUN)
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(kept, run)

    def keep_pattern(self) -> None:
        """Keep a copy of the undisturbed run's folders."""
        for name in self.boxes:
            shutil.copytree(self.run_folder(name, PATTERN_RUN), self.root / "kept" / name)

    def trust(self) -> None:
        """Write the boxes' current host keys to the laptop's known_hosts."""
        write_whole(self.known_hosts, "".join(box.known_hosts_line() for box in self.boxes.values()).encode())


@contextmanager
def fault_fleet(*, isolated: bool, shape: Shape = EVEN) -> Iterator[FaultFleet]:
    """Yield a fleet of two boxes with servers, and a run planned over both. Everything is removed after the block.

    A fleet of the `EVEN` shape has already done that run undisturbed. Its records are the true content.
    """
    root = Path(tempfile.mkdtemp(prefix="roost-faults-"))
    fleet = FaultFleet(root, isolated)
    try:
        _build(fleet, shape)
        if shape == EVEN:
            fleet.truth = _undisturbed(fleet)
            fleet.keep_pattern()
        yield fleet
    finally:
        for box in fleet.boxes.values():
            box.discard()
        shutil.rmtree(root)


def _processes_left(box: Box) -> list[str]:
    """Return the processes of a box that do not end by themselves; the last verb's process may still be ending."""
    deadline = time.monotonic() + END_SECONDS
    while left := box.processes(lambda argv: bool(argv) and not is_sshd(argv) and not is_recorder(argv)):
        if time.monotonic() > deadline:
            return [f"{box.name}: a process {process.pid}, {shlex.join(process.cmdline())[:200]}" for process in left]
        time.sleep(0.05)
    return []


def _build(fleet: FaultFleet, shape: Shape) -> None:
    model = tiny_model(CLONE, "deepseek_v3", layers=6, dtype="float32")
    hidden = json.loads((model / "config.json").read_text())["hidden_size"]
    for number, (name, delay) in enumerate(shape.delays.items(), start=1):
        server = {"hidden": hidden, "delay": delay, "high_water": shape.high_water_bytes}
        box = Box(name, number, fleet.root / name, fleet.isolated, server=server)
        fleet.boxes[name] = box
        box.set_python(fleet.python)
        box.power_on()
        box.serve()
    fleet.laptop.mkdir()
    fleet.inventory.write_text(json.dumps(_inventory(fleet, model)))
    fleet.trust()
    dataset = fleet.laptop / "dataset"
    with fleet.connected() as connected:
        _dataset(connected, model, dataset, shape.lengths)
        assert plan(connected, dataset, PATTERN_RUN).fits
    for name in fleet.boxes:
        with fleet.connected(name) as connected:
            assert plan(connected, dataset, f"only-{name}").fits


def _clean(fleet: Fleet, runs: list[str]) -> list[Outcome[CleanResult]]:
    request = CleanRequest(names=runs, older_than_seconds=0, force=True)
    return fleet.call("clean", request, CleanResult)


def _dataset(fleet: Fleet, model: Path, dataset: Path, lengths: list[int]) -> None:
    """Copy the prepared records, which are kept under `.practice`, because preparing takes most of the start."""
    digest = hashlib.sha256(json.dumps(lengths).encode()).hexdigest()[:12]
    kept = PracticePaths(CLONE).folder / "faults" / f"{model.name}-{digest}"
    if not kept.exists():
        source = _records(dataset.with_name("records.jsonl"), lengths)
        made = dataset.with_name("made")
        request = PrepareRequest(inputs=[str(source)], out=str(made), tokenizer=str(model), processes=1)
        prepare(fleet.local, request)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".aside-", dir=kept.parent) as aside:
            shutil.copytree(made, Path(aside, kept.name))
            with contextlib.suppress(OSError):  # another fleet made it at the same time
                Path(aside, kept.name).rename(kept)
    shutil.copytree(kept, dataset)


def _prompts() -> Iterator[dict[str, object]]:
    """Yield as many prompts as there are records. Every third prompt is a conversation of two turns."""
    for number in range(RECORDS):
        turns = ["old answer", f"And {number}?", "older"] if number % 3 == 0 else []
        said = [f"What is {number}?", *turns]
        yield {"messages": [{"role": ["user", "assistant"][at % 2], "content": text} for at, text in enumerate(said)]}


def _undisturbed(fleet: FaultFleet, run: str = PATTERN_RUN) -> dict[int, str]:
    fleet.extract(run)
    ended = fleet.follow(run)
    assert set(ended.values()) == {"complete"}, ended
    pulled = fleet.pull(run, fleet.destination(run))
    assert not pulled.missing, pulled
    truth = checker.truth_of(fleet.destination(run))
    assert set(truth) == set(range(RECORDS))
    return truth


def _inventory(fleet: FaultFleet, model: Path) -> dict[str, object]:
    return {
        "local": {"python": str(fleet.python), "workdir": str(fleet.laptop / "local")},
        "modes": {"extract": {"capture": True, "flags": {"dtype": "float32"}}},
        "defaults": {
            "user": "root" if fleet.isolated else None,
            "ssh_config": str(fleet.laptop / "no-ssh-config"),
            "known_hosts": str(fleet.known_hosts),
            "connect_timeout": 5,
            "model": str(model),
            "gpus": 0,
            "tp": 1,
            "layers": [1, 3],
            "context_length": 4096,
            "min_free": "1MiB",
            "dump_high_water": "4MiB",
            "parity_rate": 0,
            "tokens_per_second": 1000,
        },
        "hosts": {
            name: {
                "address": box.address,
                "ssh_port": box.ssh_port,
                "identity_file": str(box.sshd.client_key),
                "port": box.server_port,
                "python": str(box.python),
                "dump_dir": box.dump_dir,
            }
            for name, box in fleet.boxes.items()
        },
    }


def _records(path: Path, lengths: list[int]) -> Path:
    """Write tokenized records for `prepare`; return the file."""
    draw = random.Random(0)
    with path.open("w") as out:
        for length in lengths:
            tokens = [draw.randrange(250) for _ in range(length)]
            out.write(json.dumps({"input_ids": tokens, "loss_mask": [0, *[1] * (length - 1)]}) + "\n")
    return path
