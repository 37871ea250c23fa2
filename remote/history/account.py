"""The verb `account`: histograms and counts of a run from this host's ledger. Runs on the host; read-only."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence

from remote.context import Context
from remote.servers.lifecycle import records
from remote.shared.errors import HostError
from remote.shared.messages.history import AccountRequest, Histogram, RunAccount
from remote.shared.paths import Workdir
from remote.shared.redact import without_credentials
from remote.work import epochs
from remote.work.known import named
from remote.work.ledger import Ledger
from remote.work.verbs import status_of

BARS = 40
MOST_NORMS = 50_000
"""Records whose norms are read. Of more records, only every second, third, … record is read."""


def account(request: AccountRequest, context: Context) -> RunAccount:
    """Return the run's counts and histograms from its present ledger."""
    paths = named(context.workdir, request.run)
    status = status_of(paths, context)
    made = RunAccount(
        run=request.run,
        epoch=status.state.epoch,
        counts=status.state.counts,
        status=status.state.status,
        cause=status.state.cause,
        causes=status.causes,
        parity_checked=status.parity_checked,
        flagged=status.records_flagged,
        versions={"Python": platform.python_version(), "system": platform.platform(terse=True)},
    )
    if epochs.newest_epoch(paths) is not None:
        made.boundaries = list(epochs.read_description(epochs.newest(paths)).identity.boundaries)
    if paths.ledger.exists():
        with Ledger(paths.ledger, to_read=True) as ledger:
            _from_ledger(made, ledger)
    _from_servers(made, context.workdir)
    return made


def _from_ledger(made: RunAccount, ledger: Ledger) -> None:
    lengths = ledger.lengths()
    made.lengths = histogram(lengths)
    every = max(1, math.ceil(len(lengths) / MOST_NORMS))
    slots = list(zip(*(mean for mean, _ in ledger.norms(every)), strict=False))
    made.norms = [histogram(slot) for slot in slots]
    made.parity_excess = histogram([float(one["excess"]) for one in ledger.parity() if "excess" in one])
    made.first_at, made.last_at, made.retried = ledger.pace()
    for name in ("SGLang", "capture"):
        if version := ledger.fact(name):
            made.versions[name] = version


def _from_servers(made: RunAccount, workdir: Workdir) -> None:
    """Return the servers in their present records, without records that cannot be read."""
    for name in records.names(workdir):
        try:
            state = records.load(workdir.server(name))
        except HostError:
            continue
        if state is not None:
            made.commands[name] = [without_credentials(argument) for argument in state.command]
            if state.canary:
                made.canaries[name] = state.canary
            if state.sglang:
                made.versions.setdefault("SGLang", state.sglang)


def histogram(values: Sequence[float], bars: int = BARS) -> Histogram:
    """Return the counts of values in equal parts between the smallest and the largest; NaN is left out."""
    good = [value for value in values if math.isfinite(value)]
    if not good:
        return Histogram()
    low, high = min(good), max(good)
    width = (high - low) / bars or 1.0
    counts = [0] * bars
    for value in good:
        counts[min(bars - 1, int((value - low) / width))] += 1
    return Histogram(edges=[low + width * at for at in range(bars + 1)], counts=counts)
