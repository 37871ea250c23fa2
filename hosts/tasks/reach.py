"""Tasks that make a host reachable and ready: `init`, `trust`, `doctor`, `deploy`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from invoke.context import Context
from pydantic import BaseModel
from rich.text import Text

from hosts.console.live import live_lines
from hosts.console.output import Output
from hosts.console.text import as_spoken, sentence
from hosts.doctor.clusters import of_cluster
from hosts.doctor.examine import examine
from hosts.doctor.findings import Diagnosis, Finding, Level
from hosts.errors import UsageError
from hosts.fleet import Fleet, OnProgress, Outcome
from hosts.inventory.load import DEFAULT_NAME, EXAMPLE
from hosts.tasks import trusting
from hosts.tasks.session import DRY_RUN, JSON, TARGET, WAIT, finish, printing, roost_task, session
from hosts.transport.backend import Backend
from hosts.transport.payload import current_payload
from hosts.units import size
from remote.shared.messages.attach import AttachReport, AttachRequest

_LOCAL_PYTHON = "local:\n  python: python3\n"
ATTACH_DEADLINE_SECONDS = 300.0
"""Importing SGLang on a host with cold file caches takes a minute and more."""

MARKS: dict[Level, str] = {"red": "✗", "yellow": "!", "green": "✓"}
SUBJECT_WIDTH = 14


class Deployed(BaseModel):
    """What a deploy did on one host, or would do."""

    payload: str
    had_payload: bool
    sent_bytes: int
    dry_run: bool
    attach: AttachReport | None = None
    """None in a dry run on a host without the payload, because only the payload can examine the host's SGLang."""


@roost_task(
    out="file to write; an existing file is never overwritten",
    example="inv init --out inventory.yaml",
)
def init(context: Context, out: str = DEFAULT_NAME) -> None:
    """Write an example inventory that explains every key; put your own hosts in, then type `inv trust --hosts all`."""
    with printing(json=False) as output:
        try:
            with Path(out).expanduser().open("x", encoding="utf-8") as file:
                file.write(_example())
        except FileExistsError as error:
            raise UsageError(f"{out} exists already.", remedy="Edit it, or name another file with --out.") from error
        except OSError as error:
            raise UsageError(f"{out} could not be written: {error.strerror}.") from error
        output.line(f"✓ {out} written. Put your hosts in, then type: inv trust --hosts all")


def _example() -> str:
    """Return the example with the commands as this program is typed, and with the Python that runs this program.

    `python3` on the PATH would be another Python than that of `pipx`, which has the extra `data`.
    """
    text = EXAMPLE.read_text(encoding="utf-8")
    return as_spoken(text.replace(_LOCAL_PYTHON, f"local:\n  python: {json.dumps(sys.executable)}\n", 1))


@roost_task(
    TARGET,
    JSON,
    yes="accept every new key without asking (after comparing the fingerprints another way)",
    fingerprint="accept new keys with these fingerprints only (SHA256:…, separated by commas), without asking",
    changes=True,
    example="inv trust --hosts all",
)
def trust(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    yes: bool = False,
    fingerprint: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show each host's and jump host's keys, add accepted keys to known_hosts; exit code 1 if a key stays untrusted.

    A key that differs from the one in known_hosts is never replaced.
    """
    with session(host, hosts, inventory, json) as (fleet, output):
        wanted = trusting.fingerprints(fingerprint)
        if yes and wanted:
            raise UsageError("--yes and --fingerprint exclude each other.", remedy="Give only one of them.")
        seen = trusting.trust(fleet, lambda shown: yes or shown in wanted)
        if not yes and not wanted and sys.stdin.isatty() and not json:
            seen = trusting.ask(fleet, output, seen)
        amiss = "not every key on the way is trusted"
        finish(output.outcomes(seen, trusting.keys_line, lambda result: not result.complete, amiss=amiss))


@roost_task(TARGET, JSON, example="inv doctor --hosts all")
def doctor(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Show what each host has and lacks, and what to do about it; exit code 1 if something must be repaired."""
    with session(host, hosts, inventory, json) as (fleet, output):
        with live_lines(output, fleet) as lines:
            outcomes = fleet.each(lambda backend: _examined(fleet, backend, lines))
        details = partial(show_findings, output, outcomes)
        red = "something must be repaired"
        finish(output.outcomes(outcomes, diagnosis_line, lambda result: result.is_red, amiss=red, details=details))


def _examined(fleet: Fleet, backend: Backend, on_progress: OnProgress) -> Diagnosis:
    diagnosis, cluster = examine(backend, on_progress), fleet.inventory.clusters.get(backend.host.name)
    return diagnosis if cluster is None else of_cluster(diagnosis, cluster, backend)


@roost_task(TARGET, JSON, DRY_RUN, WAIT, example="inv deploy --host gpu1")
def deploy(
    context: Context,
    host: str | None = None,
    hosts: str | None = None,
    wait: bool = False,
    dry_run: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """Push Roost's code to the hosts (nothing, if a host has it) and attach capture to their SGLang."""
    with session(host, hosts, inventory, json) as (fleet, output):
        with live_lines(output, fleet) as lines:
            outcomes = fleet.each(lambda backend: _deploy(backend, lines, dry_run=dry_run, wait=wait))
        finish(output.outcomes(outcomes, _deployed_line))


def _deploy(backend: Backend, on_progress: OnProgress, *, dry_run: bool, wait: bool) -> Deployed:
    """Copy the payload if it is missing and attach capture; with `dry_run`, only say what would be done."""
    host, payload = backend.host, current_payload()
    deployed = Deployed(payload=payload.digest, had_payload=True, sent_bytes=0, dry_run=dry_run)

    def sent() -> None:
        deployed.had_payload, deployed.sent_bytes = False, len(payload.archive)

    if dry_run and not backend.has_payload():
        sent()
        return deployed
    deployed.attach = backend.call(
        "attach",
        AttachRequest(attach=host.attach, env=host.env, dry_run=dry_run, wait_for_lock=wait),
        AttachReport,
        deadline=ATTACH_DEADLINE_SECONDS,
        on_progress=lambda line: on_progress(host, line),
        on_sent=sent,
    )
    return deployed


def _deployed_line(result: Deployed) -> str:
    """Return `payload 1a2b3c4d (212.4 KiB sent); capture attached as plugin to SGLang 0.5.23 (it loads plugins)`."""
    sent = "there already" if result.had_payload else f"{size(result.sent_bytes)} {_done(result.dry_run, 'sent')}"
    attached = "" if result.attach is None else f"; {_attached(result.attach, result.dry_run)}"
    return f"payload {result.payload[:8]} ({sent}){attached}"


def _attached(report: AttachReport, dry_run: bool) -> str:
    how = f"{_done(dry_run, 'attached')} as {report.choice.way}"
    edited = f", {len(report.changed)} files {_done(dry_run, 'edited')}" if report.changed else ""
    return f"capture {how} to SGLang {report.installation.version}{edited} ({report.choice.reason})"


def _done(dry_run: bool, participle: str) -> str:
    return f"would be {participle}" if dry_run else participle


def diagnosis_line(result: Diagnosis) -> str:
    """Return `1 red, 2 yellow, 9 green`."""
    counts = {level: result.count(level) for level in MARKS}
    return ", ".join(f"{count} {level}" for level, count in counts.items() if count)


def show_findings(output: Output, outcomes: Sequence[Outcome[Diagnosis]]) -> None:
    """Print every finding of every host that answered; with `--json` the document has them already."""
    if output.as_json:
        return
    for outcome in outcomes:
        if outcome.value is not None:
            output.out.print(Text(f"\n{outcome.host.name}", "bold"))
            for finding in outcome.value.findings:
                _show(output, finding)


def _show(output: Output, finding: Finding) -> None:
    mark = (MARKS[finding.level], finding.level)
    output.out.print(Text.assemble("  ", mark, f" {finding.subject:<{SUBJECT_WIDTH}} {sentence(finding.text)}"))
    if finding.remedy:
        output.out.print(Text.assemble(f"    {'':<{SUBJECT_WIDTH}} ", (f"→ {sentence(finding.remedy)}", "dim")))
