"""Tasks that make a host reachable and ready: `trust`, `doctor`, `deploy`."""

from __future__ import annotations

import sys
from functools import partial

from invoke.context import Context

from hosts.commands import deploy as deploying
from hosts.commands import doctor as diagnosing
from hosts.commands import trust as trusting
from hosts.console.deploy import deployed_line
from hosts.console.doctor import diagnosis_line, show_findings
from hosts.console.live import live_lines
from hosts.tasks.session import DRY_RUN, JSON, TARGET, finish, roost_task, session


@roost_task(TARGET, JSON, yes="accept without asking (after comparing the fingerprint another way)")
def trust(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    yes: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show each host's key fingerprint and, when accepted, add it to known_hosts."""
    with session(host, hosts, inventory, json) as (fleet, output):
        accept = yes
        if not yes and sys.stdin.isatty() and not json:
            seen = trusting.trust(fleet, accept=False)
            output.outcomes(seen, _key)
            unknown = any(outcome.ok and not outcome.result.known_before for outcome in seen)
            accept = unknown and input("Trust the unknown ones? [y/N] ").strip().lower() in {"y", "yes"}
            if not accept:
                return
        finish(output.outcomes(trusting.trust(fleet, accept=accept), _key))


@roost_task(TARGET, JSON)
def doctor(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Say what each host has and lacks, and what to do about it; exit 1 where something must be mended."""
    with session(host, hosts, inventory, json) as (fleet, output):
        with live_lines(output, fleet) as lines:
            outcomes = diagnosing.doctor(fleet, lines)
        details = partial(show_findings, output, outcomes)
        red = "something must be mended"
        finish(output.outcomes(outcomes, diagnosis_line, lambda result: result.is_red, amiss=red, details=details))


@roost_task(TARGET, JSON, DRY_RUN)
def deploy(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Push the payload (nothing, where the host has it) and attach capture to the host's SGLang."""
    with session(host, hosts, inventory, json) as (fleet, output):
        with live_lines(output, fleet) as lines:
            outcomes = deploying.deploy(fleet, dry_run=dry_run, on_progress=lines)
        finish(output.outcomes(outcomes, deployed_line))


def _key(key: trusting.Trusted) -> str:
    state = f"added to {key.added_to}" if key.added_to else ("known" if key.known_before else "NOT trusted yet")
    return f"{key.name} {key.kind} {key.fingerprint} ({state})"
