"""The fleet at one moment, for every view: terminal, web page, metrics. Pure values.

Every number is from a host's last message, and comes with the age of that message.
"""

from __future__ import annotations

from dataclasses import dataclass

from hosts.errors import RoostError
from hosts.money import Bill, bill, total
from remote.shared.messages.history import Event, Glance, RunReading


@dataclass(frozen=True)
class HostView:
    """One host at one moment, as the laptop knows it."""

    name: str
    glance: Glance | None = None
    """The host's last message; None before the first message."""
    heard_at: float = 0.0
    """When that message came, by the laptop's clock."""
    error: RoostError | None = None
    """The error because of which the host no longer sends."""
    lost_at: float = 0.0
    rates: tuple[tuple[float, float], ...] = ()
    """(Unix time, tokens per second) of all of the host's runs together, oldest first."""
    cost_per_hour: float | None = None

    @property
    def is_lost(self) -> bool:
        """Return whether the host does not answer now."""
        return self.error is not None

    @property
    def runs(self) -> list[RunReading]:
        """Return the host's runs from its last message."""
        return [] if self.glance is None else self.glance.reading.runs

    @property
    def done(self) -> int:
        """Return the number of records that are done on the host, delivered or not."""
        return sum(run.state.counts.done + run.state.counts.freed for run in self.runs)

    @property
    def assigned(self) -> int:
        """Return the number of records in the host's share."""
        return sum(run.state.counts.assigned for run in self.runs)

    @property
    def rate(self) -> float:
        """Return the present tokens per second; 0 if the host does not work or is lost."""
        return 0.0 if self.is_lost else sum(run.rate for run in self.runs)

    @property
    def left_seconds(self) -> float | None:
        """Return the seconds to the end of the share, 0 if it is done; None if the host is idle or a run is paused."""
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
        """Return the cost of the host's runs."""
        worked = self.glance.worked_seconds if self.glance is not None else {}
        seconds = sum(worked.values()) if worked else None
        counts = [run.state.counts for run in self.runs]
        tokens, size = sum(one.tokens_done for one in counts), sum(one.bytes_done for one in counts)
        return bill(self.cost_per_hour, seconds, self.left_seconds, tokens, size)

    @property
    def word(self) -> str:
        """Return the host's status in one or two words."""
        if self.is_lost:
            return "lost"
        if self.glance is None:
            return "asked"
        if self.runs:
            return ", ".join(run.word for run in self.runs)
        return ", ".join(server.status for server in self.glance.reading.servers) or "idle"

    @property
    def trouble(self) -> str:
        """Return the most important problem as one sentence; "" if there is none."""
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
        """Return the names of all runs."""
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
        """Return the seconds until the last host is done; None if they are unknown for a host."""
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
        """Return whether every host says that no run works on it."""
        quiet = [host.glance is not None and not any(run.alive for run in host.runs) for host in self.hosts]
        return all(quiet) and not self.lost

    @property
    def is_amiss(self) -> bool:
        """Return whether a run failed or lost records."""
        states = [run.state for host in self.hosts for run in host.runs]
        return any(state.status == "failed" or state.counts.quarantined for state in states)

    def events(self, newest: int) -> list[tuple[str, Event]]:
        """Return the newest events of all hosts with the host's name, oldest first. A lost host is an event too."""
        found = [(host.name, event) for host in self.hosts if host.glance for event in host.glance.events]
        for host in self.hosts:
            if host.error is not None:
                text = f"{host.error.message} The values shown are from before that time."
                found.append((host.name, Event(at=host.lost_at, kind="lost", subject=f"host {host.name}", text=text)))
        return sorted(found, key=lambda one: one[1].at)[-newest:]
