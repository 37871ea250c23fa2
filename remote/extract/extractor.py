"""The extractor: a dispatcher that handles dumps.

Runs on the host inside the dispatcher's event loop. A record is sent only if a RAM disk has room for its dump. Dumps of
earlier sessions are removed. Every busy server gets a canary from time to time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from remote.extract.attempt import Harvest
from remote.extract.canaries import Canaries
from remote.extract.dump import layout_of
from remote.extract.leftovers import Leftovers
from remote.extract.parity import Parity, not_last, sample
from remote.extract.room import CAUSE_BYTES, room_bytes
from remote.extract.watch import Watch
from remote.parity.bands import NormBand
from remote.report import Report
from remote.servers.housekeeping.dump import likely_cause
from remote.shared.errors import HostError, RoostError, UsageError
from remote.shared.messages.extract import longest_record
from remote.shared.messages.run import RunIdentity
from remote.shared.messages.server import ServerState
from remote.shared.paths import RunPaths, Workdir
from remote.shared.shard.sessions import withdraw
from remote.shared.supervised.pools import Pool
from remote.work.assignment import Work
from remote.work.backlog import Task
from remote.work.client import Client
from remote.work.dispatcher import Dispatcher
from remote.work.endpoint import Budget, Endpoint
from remote.work.holding import Holding
from remote.work.ledger import Ledger, Row
from remote.work.session import Opened

SWEEP_SECONDS = 5.0
GONE_SECONDS = 15.0
"""Seconds. A living supervisor creates a missing dump directory again within two seconds."""
_OTHER_RUN = "Set it back to the run's value, or give the changed run another name with --run."
_RESTART = (
    "`inv restart --mode {mode}` starts the server with the present `layers` and `final` of the inventory. If they "
    "are not the run's, correct the inventory first."
)

_OTHER_MODEL = (
    "Put the planned files back and type `inv restart --mode {mode}`, or plan the run again for the present files: "
    "inv plan --anew."
)


class Extractor(Dispatcher):
    """One session of extraction."""

    mode = "extract"

    def __init__(self, workdir: Workdir, paths: RunPaths, holding: Holding, opened: Opened, report: Report) -> None:
        super().__init__(workdir, paths, holding, opened, report)
        self._dumps: dict[Path, Budget] = {}
        self._leftovers = Leftovers(workdir, paths, opened.nonces | {opened.nonce}, opened.nonce)
        self._gone_since: float | None = None
        self._swept_at = 0.0
        self._in_flight: set[str] = set()
        self._pool: Pool | None = None
        self._parity: Parity | None = None

    @classmethod
    def refusals(cls, work: Work) -> list[tuple[int, str]]:
        return list(refusals(work))

    @cached_property
    def _sample(self) -> frozenset[int]:
        refused = [position for position, _ in refusals(self._work)]
        return sample(np.delete(self._work.index, refused).tolist(), self._assignment.parity_rate)

    def ordered(self, positions: list[int]) -> list[int]:
        return not_last(positions, lambda position: int(self._work.index[position]) in self._sample)

    async def attempt(self, task: Task, endpoint: Endpoint) -> Row:
        return await self._harvest.attempt(task, endpoint)

    async def accept(self, endpoint: Endpoint, client: Client) -> None:
        """Accept a server if its capture fits the run; raises UsageError otherwise."""
        _ = endpoint.capture
        endpoint.register(self._opened.nonce)
        with Ledger(self._paths.ledger) as ledger:
            check_server(ledger, self._assignment.identity, endpoint.state)
        self._dumps.setdefault(endpoint.dump_dir, Budget(0)).limit = endpoint.high_water_bytes
        if self._sample and self._parity is not None:
            self._parity.prepare(Path(endpoint.state.model).expanduser())
        self._sweep()

    def tokens(self, position: int) -> int:
        return len(self._work.tokens(position))

    def size_bytes(self, position: int) -> int:
        """Return the size of the record, which is the same in the RAM disk and on the disk."""
        return layout_of(self._assignment.identity, self.tokens(position)).size

    async def begin(self) -> None:
        watch, self._parity = Watch(), Parity(self._assignment.identity.final)
        self._pool = Pool(self._assignment.workers, "collector")
        self._harvest = Harvest(
            work=self._work,
            sample=self._sample,
            paths=self._paths,
            nonce=self._opened.nonce,
            watch=watch,
            committer=self._committer,
            disk=self.disk_writer(self._pool),
            parity=self._parity,
            band=self._band(),
        )
        self._canaries = Canaries(self._tasks)
        self._tasks.start(watch.run(), "the watch for dumps", endless=True)

    def close(self) -> None:
        for directory in self._dumps:
            withdraw(directory, self._opened.nonce)
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._parity is not None:
            self._parity.close()

    def look(self) -> None:
        for endpoint in self._endpoints:
            self._canaries.send_where_due(endpoint)
        self._hear_canaries()
        if time.monotonic() - self._swept_at > SWEEP_SECONDS:
            self._sweep()

    def hindered(self, size: int) -> bool:
        if gone := [endpoint for endpoint in self._endpoints if endpoint.lacks_dump_dir]:
            return not self._without_dump_dir(gone[0], time.monotonic())
        self._register_again()
        starved = self._starved(size)
        if starved and not self._flying:
            self._say("waiting", starved, "ramdisk")
        return bool(starved)

    def with_room(self, ready: list[Endpoint], task: Task) -> list[Endpoint]:
        size = self.size_bytes(task.position)
        free = [
            endpoint
            for endpoint in ready
            if self._dumps[endpoint.dump_dir].admits(size) and room_bytes(endpoint.dump_dir) >= size + CAUSE_BYTES
        ]
        self._lacks_room = self._lacks_room or bool(ready and not free)
        return free

    def begun(self, task: Task, endpoint: Endpoint) -> None:
        self._dumps[endpoint.dump_dir].take(self.size_bytes(task.position))
        self._in_flight.add(self._harvest.rid(task))

    def ended(self, task: Task, endpoint: Endpoint) -> None:
        self._dumps[endpoint.dump_dir].give(self.size_bytes(task.position))
        self._in_flight.discard(self._harvest.rid(task))

    def before_records_come_again(self) -> None:
        self._sweep()

    async def at_last(self) -> None:
        await self._canaries.finish()
        self._find_dumps()
        self._sweep()
        self._hear_canaries()

    def last_word(self) -> str:
        compared = self._progress.state.parity_checked or "NOT ONE"
        return f", {compared} of this session's records compared with the server's own logprobs"

    def _band(self) -> NormBand:
        """Return the bands of the norms that the run has seen so far."""
        band = NormBand(self._assignment.identity.boundaries)
        with Ledger(self._paths.ledger) as ledger:
            for mean, largest in ledger.norms():
                band.observe(mean, largest)
        return band

    def _hear_canaries(self) -> None:
        if self._canaries.wrong is not None:
            self._judgement.end(self._canaries.wrong)
        self._progress.state.canaries_passed = self._canaries.passed

    def _starved(self, size: int) -> str:
        """Return why no RAM disk has room for a dump of `size` bytes; "" if a RAM disk has room."""
        full = [one.dump_dir for one in self._endpoints if one.ready and room_bytes(one.dump_dir) < size + CAUSE_BYTES]
        if len(full) < sum(endpoint.ready for endpoint in self._endpoints):
            return ""
        return f"The RAM disk of {full[0]} has no room for the next record's dump."

    def _register_again(self) -> None:
        """Register this session in dump directories that were created again."""
        if self._gone_since is None:
            return
        self._gone_since = None
        for endpoint in self._endpoints:
            if endpoint.ready:
                endpoint.register(self._opened.nonce)

    def _without_dump_dir(self, endpoint: Endpoint, now: float) -> bool:
        """Wait until the supervisor creates the directory again; end the run after `GONE_SECONDS`."""
        self._gone_since = self._gone_since or now
        why = f"The dump directory {endpoint.dump_dir} of the server {endpoint.name!r} was removed."
        if now - self._gone_since > GONE_SECONDS:
            remedy = "`inv restart` creates it; then `inv extract` resumes the run. `inv doctor` finds what removes it."
            waited = f"Its supervisor did not create it again within {GONE_SECONDS:.0f} s."
            why = f"{why} {waited} {likely_cause(endpoint.dump_dir)}"
            self._judgement.end(HostError(why, remedy=remedy))
        return self._say("waiting", why, "server")

    def _find_dumps(self) -> None:
        """Find all dump directories: a killed session may have left dumps of servers that this one does not use."""
        for endpoint in self._endpoints:
            with contextlib.suppress(RoostError):
                endpoint.refresh()
                if endpoint.ready:
                    self._dumps.setdefault(endpoint.dump_dir, Budget(0))

    def _sweep(self) -> None:
        self._swept_at = time.monotonic()
        for directory in self._dumps:
            self._leftovers.sweep(directory, self._in_flight)


def refusals(work: Work) -> Iterator[tuple[int, str]]:
    """Yield the positions of records that no server can take, each with the reason."""
    yield from work.strange_tokens()
    context = work.assignment.context_length
    lengths, longest = work.lengths(), longest_record(context)
    for position in np.flatnonzero((lengths == 0) | (lengths > longest)).tolist():
        long = f"It has {lengths[position]} tokens, but a context of {context} admits {longest}."
        yield position, long if lengths[position] else "It has no tokens."


def check_server(ledger: Ledger, identity: RunIdentity, state: ServerState) -> None:
    """Raise UsageError if a server has other slots, another SGLang or another capture than the run."""
    assert state.capture is not None
    run, captures, anew = identity.name, f"the server {state.name!r} captures", _RESTART.format(mode=state.mode)
    _same(run, "boundaries", list(identity.boundaries), state.capture.boundaries, captures, anew)
    _same(run, "final", identity.final, state.capture.final, captures, anew)
    if state.weights:
        who = f"the server {state.name!r} loaded"
        _same(
            run, "model files of the digest", identity.model, state.weights, who, _OTHER_MODEL.format(mode=state.mode)
        )
    for name, value in (("SGLang", state.sglang), ("capture", state.capture.version)):
        before = ledger.fact(name)
        if before is None:
            ledger.note({name: value})
        else:
            _same(run, f"{name} version", before, value, f"the server {state.name!r} has")


def _same(run: str, what: str, before: object, now: object, who: str, remedy: str = _OTHER_RUN) -> None:
    if before != now:
        raise UsageError(f"The run {run!r} was begun with {what} {before!r}, but {who} {now!r}.", remedy=remedy)
