"""Findings about disk, RAM, ports, limits, programs and the network. Laptop's side, called by `judge`; pure."""

from __future__ import annotations

from collections.abc import Iterator

from hosts.doctor.findings import Expectations, Finding, Network, green, red, yellow
from hosts.units import duration, size
from remote.shared.messages.facts import Facts, LimitFacts

RAM_KINDS = {"tmpfs", "ramfs"}
OPEN_FILES_WANTED = 65_536
"""SGLang with hundreds of requests, NCCL's sockets and CUDA's handles need this many files in every rank."""
FEW_INODES = 100_000
STARTUPS_WANTED = 8
"""The number of a pull's streams that may log in at the same time."""
SKEW_SECONDS = 2.0
SLOW_ROUND_TRIP_SECONDS = 0.3
SLOW_BYTES_PER_SECOND = 5e6


def machine(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Describe the machine; always green."""
    here = facts.machine
    box = f" in a container ({here.container})" if here.container else ""
    yield green(
        "machine",
        f"{here.hostname}, {here.kernel}, user {here.user}{box}, {here.cores} cores, {size(here.memory_bytes)} of RAM",
    )


def others(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Judge the other users: SGLang leaves the store of a server's ranks open to everybody who reaches the host."""
    people = facts.other_people
    if people:
        yield yellow(
            "others",
            f"{', '.join(people[:3])}{f' and {len(people) - 3} more' if len(people) > 3 else ''} have processes here; "
            "the store in which a server's ranks meet listens on all interfaces without a password",
            "Use a host of your own, or block all ports except the inventory's for other hosts and users.",
        )


def disk(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Check that the workdir is writable and has room for shards."""
    space = facts.workdir
    if not space.writable:
        yield red("disk", f"{facts.machine.user} cannot write to {space.path}", "Set `workdir` to a writable folder.")
        return
    if space.free_bytes < wanted.min_free_bytes:
        yield red(
            "disk",
            f"{size(space.free_bytes)} free in {space.path}; extraction waits below {size(wanted.min_free_bytes)}",
            "See `inv clean --dry-run`; or use `inv pull --free`, another `workdir` or a smaller `min_free`.",
        )
    elif space.kind in RAM_KINDS:
        yield yellow("disk", f"{space.path} is a RAM disk: a reboot loses the shards", "Set `workdir` to a real disk.")
    else:
        yield green("disk", f"{size(space.free_bytes)} of {size(space.total_bytes)} free in {space.path}")
    if space.free_inodes is not None and space.free_inodes < FEW_INODES:
        yield yellow(
            "disk",
            f"{space.free_inodes:,} inodes free, and each record needs one",
            "Delete files, or use another disk.",
        )


def ram_disk(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Check that the dump directory and the memory can hold the high-water mark."""
    space, mark = facts.ram_disk, wanted.dump_high_water_bytes
    room = space.free_bytes + space.own_bytes
    if not space.writable:
        yield red("ram disk", f"{facts.machine.user} cannot write to {space.path}", "Set another `dump_dir`.")
    elif room < mark:
        yield red(
            "ram disk",
            f"{size(room)} for dumps in {space.path}, but the high-water mark is {size(mark)}",
            f"Lower `dump_high_water`, or enlarge the RAM disk{_enlarge(facts)}.",
        )
    elif space.kind not in RAM_KINDS:
        yield yellow(
            "ram disk",
            f"the dump directory is on {space.kind or 'an unknown file system'} ({space.path}), not in RAM",
            "Every state is then written to disk twice; set `dump_dir` below /dev/shm.",
        )
    elif facts.machine.memory_available_bytes < mark:
        available = size(facts.machine.memory_available_bytes)
        yield red(
            "ram disk",
            f"only {available} of memory is available, but the high-water mark is {size(mark)}",
            "Lower `dump_high_water`, or free memory.",
        )
    else:
        yield green("ram disk", f"{size(room)} for dumps in {space.path}, high-water mark {size(mark)}")


def _enlarge(facts: Facts) -> str:
    if facts.machine.container:
        return " (docker run --shm-size, a Memory volume in Kubernetes)"
    space = facts.ram_disk
    return f" (mount -o remount,size=SIZE {space.path})" if space.kind in RAM_KINDS else ""


def ports(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Check that only the servers themselves listen on their ports."""
    for taken in facts.ports:
        if taken.ours:
            yield green("port", f"{taken.port}: server {taken.server} of this workdir listens")
            continue
        yield yellow(
            "port",
            f"{taken.port}, meant for server {taken.server}, is taken by "
            f"{taken.holder or 'a process that this user cannot see'}",
            "`inv free` shows the process, `inv free --force` ends it; or choose another `port`.",
        )


def servers(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Judge the servers; each server whose record says ready was asked for a generation."""
    for report in facts.servers:
        if report.remedy:
            yield red(
                "servers",
                report.problem.rstrip(".") or f"{report.state.name} does not say what is wrong",
                report.remedy,
            )
        elif report.problem:
            yield yellow("servers", f"{report.state.name}: {report.problem.rstrip('.')}", "`inv stop` ends the rest.")
        elif report.state.status == "ready":
            yield green("servers", f"{report.state.name} answers")


def logins(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Check that detached work outlives the user's last logout; nothing to check without systemd, or for root."""
    found, user = facts.logins, facts.machine.user
    if found is None or facts.machine.root or not (found.kill_user_processes or found.remove_ipc):
        return
    losses = ["ends servers and extractors (KillUserProcesses=yes)"] if found.kill_user_processes else []
    if found.remove_ipc:
        losses.append("removes the dump directory and servers' shared memory (RemoveIPC=yes)")
    if found.lingers:
        yield green("logins", f"{user} lingers: detached work and its shared memory outlive the last logout")
    else:
        yield yellow(
            "logins",
            f"systemd-logind {' and '.join(losses)} at {user}'s last logout",
            f"`sudo loginctl enable-linger {user}` on the host, then `inv restart`.",
        )


def limits(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Judge the limits on open files and on simultaneous logins."""
    yield _open_files(facts.limits)
    startups = facts.limits.max_startups
    first = startups.split(":")[0]
    if first.isdecimal() and int(first) < STARTUPS_WANTED:
        yield yellow(
            "sshd",
            f"MaxStartups is {startups}: streams of a pull may be refused",
            "Raise MaxStartups in sshd_config, or pull with fewer `--streams`.",
        )
    elif startups:
        yield green("sshd", f"MaxStartups {startups}, MaxSessions {facts.limits.max_sessions}")


def _open_files(found: LimitFacts) -> Finding:
    files, hard = found.open_files, found.open_files_hard
    if files == -1 or files >= OPEN_FILES_WANTED:
        return green("limits", f"{'unlimited' if files == -1 else f'{files:,}'} open files")
    most = "without limit" if hard == -1 else f"up to {hard:,}"
    return yellow(
        "limits",
        f"{files:,} open files (ulimit -n); a program may raise it {most}",
        f"Set nofile to {OPEN_FILES_WANTED} in /etc/security/limits.conf, or in the container's ulimits.",
    )


def tools(facts: Facts, wanted: Expectations) -> Iterator[Finding]:
    """Judge the host's programs and the CPU's support for encryption."""
    rsync, ssh = facts.tools.rsync or "missing", facts.tools.ssh or "missing"
    yield green("tools", f"rsync {rsync}, OpenSSH client {ssh}")
    if not facts.machine.cpu_aes:
        yield yellow("tools", "the CPU shows no AES instructions", "Nothing to do; encrypted transfers are slower.")


def network(way: Network) -> Iterator[Finding]:
    """Judge the network between the laptop and the host."""
    said = f"round trip {way.round_trip_seconds * 1000:.1f} ms"
    rate = way.bytes_per_second
    if rate is None:
        yield red("network", f"{said}, but no data came through", "Check MTU and firewalls between here and there.")
    elif rate < SLOW_BYTES_PER_SECOND or way.round_trip_seconds > SLOW_ROUND_TRIP_SECONDS:
        yield yellow(
            "network",
            f"{said}, one stream brings {size(rate)}/s",
            "A pull uses several streams; `--compress` sends a third less; a destination near the hosts saves more.",
        )
    else:
        yield green("network", f"{said}, one stream brings {size(rate)}/s or more")


def clock(way: Network) -> Iterator[Finding]:
    """Judge the difference between the host's clock and the laptop's."""
    skew = way.clock_skew_seconds
    if abs(skew) > SKEW_SECONDS + way.round_trip_seconds:
        side = "ahead of" if skew > 0 else "behind"
        yield yellow(
            "clock",
            f"{duration(abs(skew))} {side} the laptop's",
            "Start chrony or ntpd on the side that is wrong; until then, times in logs and ages in tables are wrong.",
        )
    else:
        yield green("clock", f"within {max(abs(skew), way.round_trip_seconds, 0.1):.1f} s of the laptop's")
