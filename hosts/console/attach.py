"""Output of `inv attach` (also `--probe`), `attached` and `detach`: one line a host, then its files and servers."""

from __future__ import annotations

from collections.abc import Sequence

from hosts.console.output import Output
from hosts.fleet import Outcome
from remote.shared.messages.attach import AttachReport, ProbeReport, ServerCapture


def attach_line(report: AttachReport, dry_run: bool = False) -> str:
    """Return `SGLang 0.5.23 in /opt/…/sglang: plugin (nothing of SGLang is edited)`."""
    changed = f"; {_files(report)} {'would be ' if dry_run else ''}patched" if report.changed else ""
    return f"{_where(report)}: {report.choice.way} ({report.choice.reason}){changed}"


def probe_line(report: ProbeReport) -> str:
    """Say of a model's architecture whether capture serves it, and what its loop over the blocks looks like."""
    if report.served:
        verdict = f"captured, by the family {report.served}"
    elif report.refused:
        verdict = f"not captured: {report.refused}"
    else:
        verdict = "not captured"
    return f"{report.architecture or 'a model without an architecture'}: {verdict}; {_loop(report)}"


def _loop(report: ProbeReport) -> str:
    if not report.model_class:
        return f"SGLang {report.sglang} has no loop for it that can be read"
    place = f"in SGLang {report.sglang} {report.model_class} of {report.module} runs its blocks"
    if not report.shape:
        return f"{place}, in none of the known ways"
    return f"{place}: {report.shape}, as in {' and '.join(report.near) or 'no family'}"


def is_strange(report: ProbeReport) -> bool:
    """Return whether no known family passes the residual stream on in this model's way."""
    return not report.served and not report.shape


def attached_line(report: AttachReport) -> str:
    """Describe the installation, how capture is attached, and which file an import uses."""
    checks = [f"; {check.module} is imported from {check.file}" for check in report.checks]
    missing = [f", which is without capture: {check.problem}" for check in report.checks if not check.attached]
    return f"{_where(report)}: {report.choice.way} ({report.choice.reason}){''.join(checks + missing)}"


def detach_line(report: AttachReport, dry_run: bool = False) -> str:
    """Say how many files were restored."""
    done = f"{_files(report)} {'would be ' if dry_run else ''}restored" if report.changed else "no file was patched"
    return f"{_where(report)}: {done}"


def is_amiss(report: AttachReport) -> bool:
    """Return whether a person must act: a file is in an unknown state, or SGLang imports a module without capture."""
    return any(file.state == "unknown" for file in report.files) or any(not check.attached for check in report.checks)


def show_standing(output: Output, outcomes: Sequence[Outcome[AttachReport]]) -> None:
    """Print, for each host, the state of every model file and the capture of every running server."""
    reports = [(outcome.host.name, outcome.value) for outcome in outcomes if outcome.value is not None]
    files = [[name, file.family, file.state, file.path] for name, report in reports for file in report.files]
    output.table(["host", "family", "state", "file"], files)
    servers = [[name, row.server, _capture(row)] for name, report in reports for row in report.servers]
    if servers:
        output.table(["host", "server", "capture"], servers)
    for name, report in reports:
        for file in report.files:
            if file.problem:
                output.note(f"{name}: {file.problem}.")
            for line in file.diff.splitlines():
                output.note(f"    {line}")


def _capture(row: ServerCapture) -> str:
    if row.way is None:
        return "none"
    age = "this payload" if row.current else "an earlier payload; `inv restart` renews it"
    return f"{row.way}, payload {row.payload[:8]} ({age})"


def _where(report: AttachReport) -> str:
    kind = " (a checkout)" if report.installation.editable else ""
    return f"SGLang {report.installation.version} in {report.installation.package}{kind}"


def _files(report: AttachReport) -> str:
    return f"{len(report.changed)} file{'' if len(report.changed) == 1 else 's'}"
