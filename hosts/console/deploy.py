"""What `inv deploy` prints: one line a host."""

from __future__ import annotations

from hosts.commands.deploy import Deployed
from hosts.console.text import size
from remote.shared.messages.attach import AttachReport


def deployed_line(result: Deployed) -> str:
    """`payload 1a2b3c4d (212.4 KiB sent); capture attached as plugin to SGLang 0.5.23: nothing of SGLang is edited`."""
    sent = "there already" if result.had_payload else f"{size(result.sent_bytes)} {_verb(result.dry_run, 'sent')}"
    attached = "" if result.attach is None else f"; {_attached(result.attach, result.dry_run)}"
    return f"payload {result.payload[:8]} ({sent}){attached}"


def _attached(report: AttachReport, dry_run: bool) -> str:
    """Which way, to which SGLang and why."""
    how = f"{_verb(dry_run, 'attached')} as {report.choice.way}"
    edited = f", {len(report.changed)} files {_verb(dry_run, 'edited')}" if report.changed else ""
    return f"capture {how} to SGLang {report.installation.version}{edited} ({report.choice.reason})"


def _verb(dry_run: bool, participle: str) -> str:
    return f"would be {participle}" if dry_run else participle
