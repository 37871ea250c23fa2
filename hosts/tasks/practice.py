"""The task of the practice fleet: `inv practice up|down|status|demo`."""

from __future__ import annotations

from invoke.context import Context

from hosts.errors import UsageError
from hosts.practice import demo
from hosts.practice import fleet as practising
from hosts.practice.paths import practice_root
from hosts.tasks.session import JSON, finish, printing, roost_task


@roost_task(
    JSON,
    action="up (start the fleet), down (end it and everything on it), status, or demo (the whole job)",
    count="how many hosts `up` starts",
    example="inv practice up --count 2",
)
def practice(context: Context, action: str, count: int = 2, json: bool = False) -> None:
    """Start, end or show this machine's practice fleet: sshd on loopback, SGLang on CPU (`inv practice up`).

    Also: inv practice status, down, and demo (the whole job). There is no --hosts, because the fleet is only on this
    machine; after `export ROOST_INVENTORY=.practice/inventory.yaml` every other task works on its hosts.
    """
    with printing(json) as output:
        if action == "demo":
            finish(demo.main())
            return
        if action == "down":
            ended = practising.down(practice_root())
            output.document({"ended": ended})
            output.line("\n".join(ended) or "Nothing was running.")
            return
        if action not in {"up", "status"}:
            raise UsageError(f"The practice fleet cannot {action!r}.", remedy="Use up, down, status or demo.")
        root = practice_root()
        if action == "up":
            practising.build_engine(root)
        hosts = practising.up(root, count) if action == "up" else practising.status(root)
        output.document({host.name: {"ssh_port": host.ssh_port, "up": host.up} for host in hosts})
        output.table(("host", "ssh port", "sshd", "running"), [_row(host) for host in hosts])
        if not hosts:
            output.line("The practice fleet is down; start it with: inv practice up")


def _row(host: practising.PracticeHost) -> tuple[str, str, str, str]:
    running = ", ".join(f"{process.kind} {process.name}" for process in host.running)
    return (host.name, str(host.ssh_port), "up" if host.up else "down", running or "nothing")
