"""One trial: a run begins, a fault strikes at a moment, a person repairs and resumes, and the checker judges.

Called by the suite's runner, which makes an error that a trial raises the trial's outcome.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from hosts.commands.extract import delivered_to
from hosts.commands.status import status
from hosts.console.output import EXIT_USAGE
from tests.faults import checker
from tests.faults.box import Box, is_extractor
from tests.faults.checker import Account
from tests.faults.faults import BEFORE, MOMENTS, Fault
from tests.faults.fleet import DELAY_SECONDS, PATTERN_RUN, RECORDS, FaultFleet
from tests.faults.results import RANDOM
from tests.senders import is_sender

TRIAL_SECONDS = 600
COMMAND_SECONDS = 120.0
"""The time within which every command must end, whatever is broken."""
MOMENT_SECONDS = 180.0
"""The time until a moment comes, which is long because the trials do not measure speed."""
RESUMES = 4
CLEANED_TOGETHER = 8
"""The number of runs that one `inv clean` removes."""
WORKING = ("extract", "answer")
"""Steps that the boxes do without the laptop."""
RATE = "300KB"
"""The rate limit of a pull that a fault strikes, so that the pull takes some time."""


class TrialError(AssertionError):
    """Roost broke a promise."""


@dataclass
class Trial:
    """One fault at one moment."""

    fleet: FaultFleet
    fault: Fault
    moment: str
    run: str
    victim: str
    draw: random.Random
    notes: list[str] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    planted: list[tuple[str, int]] = field(default_factory=list)
    fraction: float | None = None
    """The share of the step that is done when the fault strikes, for a random moment."""
    blind: set[str] = field(default_factory=set)
    """Hosts whose ledger was damaged. For the checker these hosts have no records."""
    crowd: list[socket.socket] = field(default_factory=list)
    _command: subprocess.Popen[str] | None = None
    _killed: bool = False

    @property
    def box(self) -> Box:
        return self.fleet.boxes[self.victim]

    @property
    def other(self) -> str:
        return next(name for name in self.fleet.boxes if name != self.victim)

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts of the trial's run. At a random moment of an extraction, the victim alone if that is enough."""
        alone = self.moment == RANDOM and self.fault.step in WORKING and not self.fault.needs_other
        return (self.victim,) if alone else tuple(self.fleet.boxes)

    @property
    def destination(self) -> Path:
        return self.fleet.root / "delivered" / "trial"

    def note(self, text: str) -> None:
        """Add a note to the outcome."""
        self.notes.append(text)

    def plant(self) -> Path:
        """Return a finished shard of the victim, which the caller damages."""
        index = self.draw.choice(sorted(checker.finished(self.run_folder(self.victim))))
        self.planted.append((self.victim, index))
        return self.run_folder(self.victim) / "shards" / f"hs_{index}.safetensors"

    def kill_command(self) -> None:
        """Kill the running `inv`."""
        assert self._command is not None
        self._killed = True
        self._command.kill()

    def kill_children(self, name: str) -> int:
        """Kill the programs of this name that the running `inv` has started; return their number."""
        assert self._command is not None
        found = [one for one in psutil.Process(self._command.pid).children(recursive=True) if one.name() == name]
        for one in found:
            one.kill()
        return len(found)

    def end_extractor(self) -> None:
        """Kill the victim's extractor, and wait until its lock is free."""
        self.box.signal(signal.SIGKILL, is_extractor)
        self._await_extractors((self.victim,))

    def open_records(self) -> list[int]:
        """Return the records without a row on the victim, in random order."""
        found = sorted(set(self.fleet.truth) - set(checker.finished(self.run_folder(self.victim))))
        self.draw.shuffle(found)
        return found

    def start(self, *words: str) -> None:
        """Type `inv …` without waiting for its end."""
        self._command = self.fleet.inv(*words)

    def end_command(self) -> None:
        """Wait for the end of the running `inv`, which may fail."""
        self._said(may_fail=True)

    def leases(self) -> int:
        """Return the number of leases that the victim has given. Its claims of its own chunks are empty files."""
        claims = (self.run_folder(self.victim) / "leases").glob("*/claims/*/*/*")
        return sum(path.name[0] != "." and path.stat().st_size > 0 for path in claims)

    def await_lease(self) -> None:
        """Wait until the victim has given a lease."""
        _await(lambda: self.leases() > 0, "a lease")

    def type_beside(self, *words: str) -> None:
        """Type `inv …` while another `inv` runs. The second may be refused, and must end."""
        under_way = self._command
        self.type(*words, may_fail=True)
        self._command = under_way

    def type_refused(self, says: str, *words: str) -> None:
        """Type `inv …` while another `inv` runs, or after it was killed; raise TrialError unless `says` refuses it."""
        under_way = self._command
        said = self.type(*words, may_fail=True)
        code = self._command.returncode if self._command is not None else None
        self._command = under_way
        if code != EXIT_USAGE or says not in said:
            raise TrialError(f"inv {' '.join(words)} ended with {code} and did not say {says!r}: {said[-300:]}")

    def await_manifest(self) -> None:
        """Wait until the running pull has written the destination's manifest."""
        _await((self.destination / "roost" / "manifest.json").exists, "the destination's manifest")

    def type_twice(self, *words: str) -> None:
        """Type the same command twice at once. One of them may be refused."""
        first = self.fleet.inv(*words)
        self.type(*words, may_fail=True)
        self._command = first
        self._said(may_fail=True)

    def type(self, *words: str, may_fail: bool = False) -> str:
        """Type `inv …` and return its output. It must end in time, and never with a traceback."""
        self._command = self.fleet.inv(*words)
        return self._said(may_fail)

    def go(self) -> None:
        """Run the trial; raise TrialError, or the error that Roost raised."""
        previous = signal.signal(signal.SIGALRM, _overdue)
        signal.alarm(TRIAL_SECONDS)
        try:
            with self._fleet_as_needed():
                self._go()
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)
            if self._command is not None and self._command.poll() is None:
                self._command.kill()
            shutil.rmtree(self.destination, ignore_errors=True)

    def _fleet_as_needed(self) -> AbstractContextManager[None]:
        if self.fault.step == "answer":
            return self.fleet.answering()
        return self.fleet.uneven(self.victim) if self.fault.moves else nullcontext()

    def _go(self) -> None:
        if self.moment == RANDOM:
            self.fraction = self.draw.random()
        if self.fault.step == "ask":
            self._strike_and_ask()
            return
        if self.run != PATTERN_RUN:
            self.fleet.begin_run(self.run, self.names)
            if self.fault.step in WORKING and self.moment == BEFORE:
                self.fault.strike(self)
            if not self.fault.begins:
                self._begin()
        if self.fault.begins:
            self.fault.strike(self)
        elif self.fault.step == "pull":
            self._strike_pull()
        elif self.moment != BEFORE:
            self._strike_extraction()
        if self.fault.unreachable:
            self._ask_while_broken()
        elif self.fault.step in WORKING and self.moment != RANDOM:
            self._ask()
        self._judge()
        self.fault.mend(self)
        self._finish((self.other,) if self.fault.gone else self.names)
        self.fault.restore(self)
        if self.fault.gone:
            self._come_back()
        self._clean()

    def _begin(self) -> None:
        for outcome in self.fleet.extract(self.run, *self.names).outcomes:
            if outcome.error is not None:
                raise TrialError(f"{outcome.host.name} did not begin: {outcome.error}")

    def _strike_and_ask(self) -> None:
        """Check that `inv status` of both hosts names the victim and the cause, and succeeds after the repair."""
        words = ("status", "--hosts", "all", "--run", self.run)
        self.fault.strike(self)
        said = self.type(*words, may_fail=True)
        if self.fault.refusal not in said or f"{self.victim}" not in said or self._command_succeeded():
            raise TrialError(f"inv status did not say {self.fault.refusal!r}: {said[-300:]}")
        self.note(next(line.strip() for line in said.splitlines() if self.fault.refusal in line))
        self._ask_while_broken()
        self.fault.mend(self)
        self.type(*words)
        self._finish(self.names)

    def _strike_extraction(self) -> None:
        share = self.fleet.plan(self.run).share(self.victim)
        assert share is not None
        wanted = self._share_done() * share.records
        shards = self.run_folder(self.victim) / "shards"
        _await(lambda: shards.is_dir() and _shards(shards) >= wanted, "the moment")
        time.sleep(self.draw.uniform(0, DELAY_SECONDS))  # anywhere between two records
        self.fault.strike(self)

    def _strike_pull(self) -> None:
        if self.run != PATTERN_RUN:
            self._await_extractors(self.names)
        self.fault.prepare(self)
        if self.moment == BEFORE:
            self.fault.strike(self)
        command = ("pull", "--hosts", "all", "--to", str(self.destination), "--run", self.run, "--limit-rate", RATE)
        self._command = process = self.fleet.inv(*command)
        if self.moment != BEFORE:
            wanted = self._share_done() * RECORDS
            _await(lambda: process.poll() is not None or self._arrived() >= wanted, "the moment")
            self.fault.strike(self)
        said = self._said(may_fail=True)
        refusal = self.fault.refusal.format(victim=self.victim)
        if refusal and process.returncode == 0 and len(self._examined().delivered) < RECORDS:
            raise TrialError(f"inv pull ended well with records missing: {said[-300:]}")
        if process.returncode != 0 and not self._killed and refusal not in said:
            raise TrialError(f"inv pull did not say {refusal!r}: {said[-300:]}")

    def _command_succeeded(self) -> bool:
        return self._command is not None and self._command.returncode == 0

    def _said(self, may_fail: bool) -> str:
        process = self._command
        assert process is not None
        try:
            said, _ = process.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise TrialError(f"{process.args!r} had not ended after {COMMAND_SECONDS:g} s") from None
        if "Traceback" in said:
            raise TrialError(f"a traceback: {said[-600:]}")
        if process.returncode != 0 and not may_fail:
            raise TrialError(f"{process.args!r} ended with {process.returncode}: {said[-300:]}")
        return said

    def _share_done(self) -> float:
        if self.fraction is not None:
            return self.fraction
        return MOMENTS[self.moment]

    def _arrived(self) -> int:
        folder = self.destination / ("answers" if self.fleet.answers else "hidden_states")
        return len(list(folder.iterdir())) if folder.is_dir() else -1

    def _ask(self) -> None:
        """Ask for the victim's status during the fault, and note its answer for the outcome."""
        with self.fleet.connected(self.victim) as fleet:
            (told,) = status(fleet, self.run)
        if told.error is not None and self.fault.damages and self.fault.damages in str(told.error):
            self.note(str(told.error))
            return
        if told.error is not None:
            raise TrialError(f"{self.victim} did not say how it stands: {told.error}")
        state = told.result.standing.runs[0].state
        self.note(f"{state.status}{': ' + state.cause if state.cause else ''}")

    def _ask_while_broken(self) -> None:
        with self.fleet.connected() as fleet:
            told = {outcome.host.name: outcome for outcome in status(fleet, self.run)}
        if told[self.victim].ok:
            raise TrialError("the broken host answered")
        self.note(str(told[self.victim].error))
        if not told[self.other].ok:
            raise TrialError(f"the other host did not answer: {told[self.other].error}")

    def run_folder(self, host: str) -> Path:
        """Return the path at which the suite sees the run's folder on a box."""
        return self.fleet.run_folder(host, self.run)

    def _examined(self, *names: str) -> Account:
        runs = {name: self.run_folder(name) for name in names or self.fleet.boxes if name not in self.blind}
        return checker.examine(self.destination, runs, self.fleet.truth, self.planted)

    def _judge(self) -> None:
        self.account = self._examined()
        if self.account.faults:
            raise TrialError("; ".join(self.account.faults))

    def _finish(self, names: tuple[str, ...]) -> None:
        """Resume as a person would until every record is delivered: extract open records, pull, and check."""
        refused = False
        for _ in range(RESUMES):
            self._await_extractors(names)
            if self.run != PATTERN_RUN and (refused or self._examined(*names).open):
                self._resume(names)
            pulled = self.fleet.pull(self.run, self.destination, *names)
            if pulled.missing_records <= len(self._examined(*names).quarantined):
                break
            refused = any(outcome.error is not None for outcome in pulled.outcomes)
        self.planted.clear()
        self._judge()
        if self.fault.quarantines and self.account.quarantined:
            self.note("; ".join(sorted(set(self.account.quarantined.values()))))
        elif len(self.account.delivered) < RECORDS:
            causes = sorted(set(self.account.quarantined.values()))
            raise TrialError(f"{RECORDS - len(self.account.delivered)} records did not arrive: {causes}")

    def _resume(self, names: tuple[str, ...]) -> None:
        lost = len(names) < len(self.names)
        delivered = (
            delivered_to(self.destination, self.fleet.plan(self.run).identity)
            if lost and self._arrived() >= 0
            else None
        )
        for outcome in self.fleet.extract(self.run, *names, delivered=delivered).outcomes:
            if outcome.error is not None:
                self.note(f"{outcome.host.name}: {outcome.error}")
        self._await_extractors(names)

    def _await_extractors(self, names: tuple[str, ...]) -> None:
        _await(lambda: not any(self.fleet.extracts(self.run, name) for name in names), "the end of the extraction")

    def _come_back(self) -> None:
        """Let a host return that was given up, and check that it is fenced and no record is delivered twice."""
        if self.victim in self.fleet.plan(self.run).lost:
            self.fleet.extract(self.run, self.other)
        pulled = self.fleet.pull(self.run, self.destination)
        for outcome in pulled.outcomes:
            if outcome.error is not None and "no run" not in str(outcome.error):
                raise TrialError(f"{outcome.host.name} after its return: {outcome.error}")
        self._judge()

    def _clean(self) -> None:
        is_ours: Callable[[list[str]], bool] = lambda argv: is_extractor(argv) or is_sender(argv)  # noqa: E731
        boxes = self.fleet.boxes.values()
        _await(lambda: not any(box.processes(is_ours) for box in boxes), "the end of every extractor and sender")
        if len(self.fleet.uncleaned) >= CLEANED_TOGETHER and (left := self.fleet.clean()):
            raise TrialError(f"left over of the last {CLEANED_TOGETHER} runs: {left}")


def _shards(folder: Path) -> int:
    """Return the number of shards under their final name."""
    return sum(name.startswith("hs_") for name in os.listdir(folder))


def _await(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + MOMENT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TrialError(f"{what} did not come within {MOMENT_SECONDS:g} s")
        time.sleep(0.01)


def _overdue(_: int, __: FrameType | None) -> None:
    raise TrialError(f"the trial had not ended after {TRIAL_SECONDS} s")
