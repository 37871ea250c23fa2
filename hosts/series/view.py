"""The fleet at one moment, as any view shows it: a terminal, a web page, metrics. Pure values.

Every number is from a host's own last word; the age of that word travels with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hosts.errors import RoostError
from hosts.money import Bill, bill, total
from remote.shared.messages.history import Event, Glance, RunReading


@dataclass(frozen=True)
class HostView:
    """One host at one moment, as far as the laptop knows."""

    name: str
    glance: Glance | None = None
    """What it said last; None before it has said anything."""
    heard_at: float = 0.0
    """When it said that, by the laptop's clock."""
    error: RoostError | None = None
    """Why it is not heard any more."""
    lost_at: float = 0.0
    rates: tuple[tuple[float, float], ...] = ()
    """(Unix time, tokens a second) of its runs together, oldest first."""
    cost_per_hour: float | None = None

    @property
    def is_lost(self) -> bool:
        """Whether it was heard or asked, and does not answer now."""
        return self.error is not None

    @property
    def runs(self) -> list[RunReading]:
        """Its runs by its last word."""
        return [] if self.glance is None else self.glance.reading.runs

    @property
    def done(self) -> int:
        """Records that are done there, delivered or not."""
        return sum(run.state.counts.done + run.state.counts.freed for run in self.runs)

    @property
    def assigned(self) -> int:
        """Records of its share."""
        return sum(run.state.counts.assigned for run in self.runs)

    @property
    def rate(self) -> float:
        """Tokens a second now; 0 if nothing moves or nothing is heard."""
        return 0.0 if self.is_lost else sum(run.rate for run in self.runs)

    @property
    def left_seconds(self) -> float | None:
        """To the end of its share at this rate; None if nothing moves or a run is paused, 0 if nothing is open."""
        counts = [run.state.counts for run in self.runs]
        tokens = sum(max(0, one.tokens_assigned - one.tokens_done) for one in counts if one.done < one.assigned)
        open_records = sum(max(0, one.assigned - one.done - one.freed - one.quarantined) for one in counts)
        if not open_records:
            return 0.0 if counts else None
        if any(run.wished == "pause" for run in self.runs):
            return None
        return tokens / self.rate if self.rate > 0 else None

    @property
    def bill(self) -> Bill:
        """What it costs."""
        worked = self.glance.worked_seconds if self.glance is not None else {}
        seconds = sum(worked.values()) if worked else None
        counts = [run.state.counts for run in self.runs]
        tokens, size = sum(one.tokens_done for one in counts), sum(one.bytes_done for one in counts)
        return bill(self.cost_per_hour, seconds, self.left_seconds, tokens, size)

    @property
    def word(self) -> str:
        """How it stands, in one or two words."""
        if self.is_lost:
            return "lost"
        if self.glance is None:
            return "asked"
        if self.runs:
            return ", ".join(run.word for run in self.runs)
        return ", ".join(server.status for server in self.glance.reading.servers) or "idle"

    @property
    def trouble(self) -> str:
        """The one sentence that matters most; "" if all is well."""
        if self.error is not None:
            return self.error.message
        causes = [run.state.cause for run in self.runs if run.state.cause]
        if self.glance is not None:
            failed = [one for one in self.glance.reading.servers if one.status == "failed"]
            causes += [f"server {one.name}: {one.cause}" for one in failed]
        return causes[0] if causes else ""


@dataclass(frozen=True)
class FleetView:
    """All hosts at one moment."""

    at: float
    hosts: list[HostView]

    @property
    def runs(self) -> list[str]:
        """Names of all runs that are told of."""
        return sorted({run.run for host in self.hosts for run in host.runs})

    @property
    def done(self) -> int:
        return sum(host.done for host in self.hosts)

    @property
    def assigned(self) -> int:
        return sum(host.assigned for host in self.hosts)

    @property
    def rate(self) -> float:
        return sum(host.rate for host in self.hosts)

    @property
    def left_seconds(self) -> float | None:
        """Until the last host is done; None if that of one host is not known."""
        left = [host.left_seconds for host in self.hosts if host.assigned]
        known = [seconds for seconds in left if seconds is not None]
        return max(known) if known and len(known) == len(left) else None

    @property
    def bill(self) -> Bill:
        return total(host.bill for host in self.hosts)

    @property
    def lost(self) -> list[str]:
        return [host.name for host in self.hosts if host.is_lost]

    @property
    def is_over(self) -> bool:
        """Whether no run is at work on any host, and every host says so."""
        quiet = [host.glance is not None and not any(run.alive for run in host.runs) for host in self.hosts]
        return all(quiet) and not self.lost

    @property
    def is_amiss(self) -> bool:
        """Whether a run failed or lost records."""
        states = [run.state for host in self.hosts for run in host.runs]
        return any(state.status == "failed" or state.counts.quarantined for state in states)

    def events(self, newest: int) -> list[tuple[str, Event]]:
        """The newest events of all hosts with their host's name, oldest first; a lost host is one of them."""
        found = [(host.name, event) for host in self.hosts if host.glance for event in host.glance.events]
        for host in self.hosts:
            if host.error is not None:
                text = f"{host.error.message} What is shown of it is from then."
                found.append((host.name, Event(at=host.lost_at, kind="lost", subject=f"host {host.name}", text=text)))
        return sorted(found, key=lambda one: one[1].at)[-newest:]
