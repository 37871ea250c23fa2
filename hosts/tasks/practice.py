"""The practice fleet's task: `inv practice up|down|status`."""

from __future__ import annotations

from pathlib import Path

from invoke.context import Context
from invoke.main import program

from hosts.errors import UsageError
from hosts.practice import fleet as practising
from hosts.tasks.session import JSON, printing, roost_task

ROOT = Path(__file__).parents[2]
"""This clone; the practice fleet's state is `.practice/` in it."""

HELP = ("--help", "-h")
"""Invoke takes them for the value of a positional argument."""


@roost_task(
    JSON,
    action="up (start it; what runs stays), down (end it and all that runs on it) or status",
    count="how many hosts `up` starts",
    example="inv practice up --count 2",
)
def practice(context: Context, action: str, count: int = 2, json: bool = False) -> None:
    """Start, end or show this machine's practice fleet: sshd on loopback, SGLang on CPU (`inv practice up`).

    inv practice up [--count N], inv practice status, inv practice down. It is this machine alone, so there is no
    --hosts; after `export ROOST_INVENTORY=.practice/inventory.yaml` every other task works on its hosts.
    """
    if action in HELP:
        program.print_task_help(practice.name)
        return
    with printing(json) as output:
        if action == "down":
            ended = practising.down(ROOT)
            output.document({"ended": ended})
            output.line("\n".join(ended) or "Nothing was running.")
            return
        if action not in {"up", "status"}:
            raise UsageError(f"The practice fleet cannot {action!r}.", remedy="Say up, down or status.")
        hosts = practising.up(ROOT, count) if action == "up" else practising.status(ROOT)
        output.document({host.name: {"ssh_port": host.ssh_port, "up": host.up} for host in hosts})
        output.table(("host", "ssh port", "sshd", "running"), [_row(host) for host in hosts])
        if not hosts:
            output.line("The practice fleet is down; start it with: inv practice up")


def _row(host: practising.PracticeHost) -> tuple[str, str, str, str]:
    running = ", ".join(f"{process.kind} {process.name}" for process in host.running)
    return (host.name, str(host.ssh_port), "up" if host.up else "down", running or "nothing")
