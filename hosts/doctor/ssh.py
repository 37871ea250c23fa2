"""How a host's control connection is carried, and what known_hosts has that nobody can read. Laptop's side."""

from __future__ import annotations

from collections.abc import Iterator

from hosts.doctor.findings import Finding, green, yellow
from hosts.transport.openssh import openssh_version
from hosts.transport.settings import Route
from hosts.transport.ssh import choose


def connection(route: Route) -> Iterator[Finding]:
    """Which of Fabric and OpenSSH carries the host, over which jump hosts, and why; unreadable known_hosts lines."""
    choice = choose(route)
    version = ".".join(map(str, openssh_version()))
    carrier = f"OpenSSH {version}" if choice.openssh else "Fabric"
    jumps = [hop.where.removeprefix("the jump host ") for hop in route.hops[:-1]]
    through = f" through {', '.join(jumps)}" if jumps else ""
    yield green("ssh", f"{carrier} to {route.target.where}{through}: {choice.why}")
    unreadable = {line.place: line for hop in route.hops for line in hop.known().unreadable}
    for place, line in unreadable.items():
        yield yellow(
            "known_hosts", f"{place} is skipped: {line.problem}", "Mend or remove that line; ssh skips it too."
        )
