"""Functions that break, or repair, a box, a link, a server, a file or the laptop's own program in a trial.

Named by `tests.faults.faults`. A function with a parameter returns the action.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from hosts.plan.plan import save
from remote.shared.messages.extract import ShardRow
from remote.shared.messages.run import RunIdentity, new_nonce
from remote.shared.paths import shard_name
from remote.work.ledger import Ledger, Row
from tests.faults import checker
from tests.faults.box import is_extractor, is_server, is_sshd

if TYPE_CHECKING:
    from tests.faults.trial import Trial

Action = Callable[["Trial"], None]

SECOND_RUN = "another-run"
"""As long as the first run's name, so its records can be made from the first run's by changing marks in headers."""
FULL_SECONDS = 2.0
CUT_SECONDS = 5.0
MOVE_SECONDS = 4.0
"""The time in which the first leases are handed over and begun, and the next leases are made."""
START_SECONDS = 8.0
"""The time in which `inv extract` has, or almost has, given a host its share."""


def nothing(_: Trial) -> None:
    """Do nothing, because the fault ends by itself or needs no repair."""


def kill(is_meant: Callable[[list[str]], bool]) -> Action:
    def strike(trial: Trial) -> None:
        trial.note(f"{trial.box.signal(signal.SIGKILL, is_meant)} killed")

    return strike


def wait(seconds: float) -> None:
    """Let a fault last for this time. No condition is awaited."""
    threading.Event().wait(seconds)


def serve(trial: Trial) -> None:
    trial.box.serve()


def power_off(trial: Trial) -> None:
    trial.box.power_off()


def power_on(trial: Trial) -> None:
    trial.box.power_on()
    trial.box.serve()


def reboot(trial: Trial) -> None:
    power_off(trial)
    power_on(trial)


def lose(trial: Trial) -> None:
    trial.box.power_off()
    trial.box.lose_disk()


def new_disk(trial: Trial) -> None:
    power_on(trial)
    trial.fleet.restore_pattern()


def cut(trial: Trial) -> None:
    trial.box.set_link(False)


def plug(trial: Trial) -> None:
    trial.box.set_link(True)


def cut_for_a_while(trial: Trial) -> None:
    cut(trial)
    wait(CUT_SECONDS)
    plug(trial)


def freeze(trial: Trial) -> None:
    trial.box.signal(signal.SIGSTOP, is_sshd)


def thaw(trial: Trial) -> None:
    trial.box.signal(signal.SIGCONT, is_sshd)


def freeze_for_a_while(trial: Trial) -> None:
    freeze(trial)
    wait(CUT_SECONDS)
    thaw(trial)


def fill_disk(trial: Trial) -> None:
    trial.box.fill_disk()
    wait(FULL_SECONDS)


def fill_inodes(trial: Trial) -> None:
    trial.box.fill_disk(inodes=True)
    wait(FULL_SECONDS)


def empty_disk(trial: Trial) -> None:
    trial.box.empty_disk()


def fill_ramdisk(trial: Trial) -> None:
    trial.box.fill_ramdisk()
    wait(FULL_SECONDS)


def empty_ramdisk(trial: Trial) -> None:
    trial.box.empty_ramdisk()


def flip_a_byte(trial: Trial) -> None:
    flip(trial.plant(), trial.draw)


def truncate(trial: Trial) -> None:
    shard = trial.plant()
    os.truncate(shard, trial.draw.randrange(shard.stat().st_size))


def repair(trial: Trial) -> None:
    trial.type("verify", "--hosts", trial.victim, "--run", trial.run, "--repair", may_fail=True)


def change_key(trial: Trial) -> None:
    trial.box.change_host_key()


def trust(trial: Trial) -> None:
    trial.fleet.trust()


def kill_laptop(trial: Trial) -> None:
    trial.kill_command()


def restart_server(trial: Trial) -> None:
    trial.box.signal(signal.SIGKILL, is_server)
    trial.box.serve()


def stop_server(trial: Trial) -> None:
    trial.box.signal(signal.SIGSTOP, is_server)
    wait(FULL_SECONDS)


def continue_server(trial: Trial) -> None:
    trial.box.signal(signal.SIGCONT, is_server)


def misbehave(fault: str) -> Action:
    """Let the stand-in answer every request with this fault from now on."""

    def strike(trial: Trial) -> None:
        trial.box.tell_server({str(index): [fault] for index in trial.fleet.truth})
        wait(FULL_SECONDS)

    return strike


def behave(trial: Trial) -> None:
    trial.box.tell_server({})


def not_a_number(trial: Trial) -> None:
    trial.box.tell_server({str(index): ["nan"] for index in trial.open_records()[:1]})


def fill_ramdisk_to_the_last_byte(trial: Trial) -> None:
    trial.box.fill_ramdisk_to_the_last_byte()
    wait(FULL_SECONDS)


def make_read_only(trial: Trial) -> None:
    trial.box.make_read_only()
    wait(FULL_SECONDS)


def make_writable(trial: Trial) -> None:
    trial.box.make_writable()


def step_clock(hours: float) -> Action:
    def strike(trial: Trial) -> None:
        trial.box.set_clock(hours * 3600)

    return strike


def right_clock(trial: Trial) -> None:
    trial.box.set_clock(0)


def mute(trial: Trial) -> None:
    trial.box.mute_sshd()


def unmute(trial: Trial) -> None:
    trial.box.restart_sshd({})


def mute_for_a_while(trial: Trial) -> None:
    mute(trial)
    wait(CUT_SECONDS)
    unmute(trial)


def half_open(trial: Trial) -> None:
    """Let the box forget its connections while the link is down, so that the laptop's ends stay open."""
    cut(trial)
    trial.box.forget_connections()
    plug(trial)


def offer_twice(trial: Trial) -> None:
    """Give each box the records that the other box finished, as if a share was moved and its host then came back."""
    rows: dict[str, list[ShardRow]] = {}
    for name in trial.fleet.boxes:
        with Ledger(trial.run_folder(name) / "ledger.sqlite") as ledger:
            rows[name] = [row for _, row in ledger.shards()]
    for name, other in ((trial.victim, trial.other), (trial.other, trial.victim)):
        copy_records(trial.run_folder(other), trial.run_folder(name), rows[other])


def copy_records(source: Path, target: Path, rows: list[ShardRow]) -> None:
    """Copy these finished records of the run in `source` to the run in `target`."""
    for row in rows:
        shutil.copyfile(source / "shards" / shard_name(row.index), target / "shards" / shard_name(row.index))
    with Ledger(target / "ledger.sqlite") as ledger:
        ledger.record(Row(row.index, "done", row.rows, row.epoch, row.size_bytes, row.xxh3) for row in rows)


def offer_once(trial: Trial) -> None:
    trial.fleet.restore_pattern()


def make_second_run(trial: Trial) -> None:
    """Give each box all records of a second run of the same dataset, and the laptop that run's plan."""
    first = trial.fleet.plan(trial.run)
    second = first.identity.model_copy(update={"name": SECOND_RUN, "nonce": new_nonce()})
    save(first.model_copy(update={"identity": second}), trial.fleet.plan_file(SECOND_RUN))
    for name in trial.fleet.boxes:
        source, target = trial.run_folder(name), trial.fleet.run_folder(name, SECOND_RUN)
        shutil.rmtree(target, ignore_errors=True)
        (target / "shards").mkdir(parents=True)
        with Ledger(source / "ledger.sqlite") as ledger:
            rows = [row for _, row in ledger.shards()]
        with Ledger(target / "ledger.sqlite") as ledger:
            ledger.note({"identity": second.model_dump_json()})
            ledger.record(_as_second(source, target, row, first.identity, second) for row in rows)


def _as_second(source: Path, target: Path, row: ShardRow, first: RunIdentity, second: RunIdentity) -> Row:
    """Write a record of the first run as a record of the second: only the marks in its header change."""
    content = (source / "shards" / shard_name(row.index)).read_bytes()
    for key, mark in first.marks.items():
        assert len(mark) == len(second.marks[key])
        content = content.replace(json.dumps(mark).encode(), json.dumps(second.marks[key]).encode(), 1)
    (target / "shards" / shard_name(row.index)).write_bytes(content)
    return Row(row.index, "done", row.rows, row.epoch, row.size_bytes, xxhash.xxh3_128_hexdigest(content))


def pull_second_run(trial: Trial) -> None:
    """Pull a second run into the first run's folder while the first run's pull runs, or just after it was killed.

    The second pull must be refused, and every record of the second run must stay on its host.
    """
    trial.await_manifest()
    if trial.draw.random() < 0.5:
        trial.kill_command()
        trial.note("after a killed pull")
    free = ["--free"] if trial.draw.random() < 0.5 else []
    before = _second_runs_files(trial)
    words = ("pull", "--hosts", "all", "--to", str(trial.destination), "--run", SECOND_RUN, *free)
    trial.type_refused(f"holds the run '{trial.run}'", *words)
    assert _second_runs_files(trial) == before, "the second run's shards changed on its hosts"


def _second_runs_files(trial: Trial) -> dict[Path, bytes]:
    folders = [trial.fleet.run_folder(name, SECOND_RUN) / "shards" for name in trial.fleet.boxes]
    return {path: path.read_bytes() for folder in folders for path in folder.iterdir()}


def remove_second_run(trial: Trial) -> None:
    for name in trial.fleet.boxes:
        shutil.rmtree(trial.fleet.run_folder(name, SECOND_RUN))
    trial.fleet.plan_file(SECOND_RUN).unlink()


def kill_near_end(trial: Trial) -> None:
    trial.note(f"{trial.kill_children('ssh')} killed")


def second_extract(trial: Trial) -> None:
    trial.type_twice("extract", "--hosts", trial.victim, "--run", trial.run, "--detach")


def second_pull(trial: Trial) -> None:
    trial.type_beside("pull", "--hosts", "all", "--to", str(trial.destination), "--run", trial.run)


def killed_while_starting(trial: Trial) -> None:
    """Kill `inv extract` or `inv answer` at a random moment after its start."""
    trial.start(trial.fault.step, "--hosts", ",".join(trial.names), "--run", trial.run, "--detach")
    wait(trial.draw.uniform(0, START_SECONDS))
    trial.kill_command()


def killed_in_a_move(whom: str) -> Action:
    """Kill the slow host's extractor, the other host's extractor or the attached `inv extract` around a lease.

    The random moment is a share of the seconds in which leases are made, handed over and begun.
    """

    def strike(trial: Trial) -> None:
        trial.start("extract", "--hosts", "all", "--run", trial.run)
        trial.await_lease()
        wait((trial.fraction or 0.0) * MOVE_SECONDS)
        leases = trial.leases()
        if whom == "laptop":
            trial.kill_command()
        else:
            name = trial.victim if whom == "giver" else trial.other
            trial.note(f"{trial.fleet.boxes[name].signal(signal.SIGKILL, is_extractor)} killed")
        trial.end_command()
        trial.note(f"{leases} records leased then, {trial.leases()} at the command's end")

    return strike


def move_to_the_end(trial: Trial) -> None:
    """Stay attached, as a person would, until every record is made."""
    trial.type("extract", "--hosts", "all", "--run", trial.run)


def made_once(trial: Trial) -> None:
    """Raise AssertionError if a record is in the ledgers of both hosts."""
    done = [set(checker.finished(trial.run_folder(name))) for name in trial.fleet.boxes]
    if twice := set.intersection(*done):
        raise AssertionError(f"both hosts made the records {sorted(twice)}")


def damage_ledger(trial: Trial) -> None:
    """Overwrite a part of the ledger while no process has it open, as a failing disk does."""
    trial.end_extractor()
    ledger = trial.run_folder(trial.victim) / "ledger.sqlite"
    for suffix in ("-wal", "-shm"):
        ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)
    damage(ledger, trial.draw)
    trial.blind.add(trial.victim)


def move_ledger_away(trial: Trial) -> None:
    """Move the ledger away, as the error's sentence says. The damage may have gone unnoticed."""
    said = trial.type("extract", "--hosts", ",".join(trial.names), "--run", trial.run, "--detach", may_fail=True)
    ledger = trial.run_folder(trial.victim) / "ledger.sqlite"
    trial.note(f"seen: {'ledger' in said}")
    trial.end_extractor()
    for suffix in ("", "-wal", "-shm"):
        ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)
    trial.blind.discard(trial.victim)


def damage_assignment(trial: Trial) -> None:
    trial.end_extractor()
    (folder,) = (trial.run_folder(trial.victim) / "assignments").iterdir()
    damage(trial.draw.choice(sorted(folder.iterdir())), trial.draw)


def damage_states(trial: Trial) -> None:
    """Damage the state files of extractor and server."""
    trial.end_extractor()
    for state in (trial.run_folder(trial.victim) / "state.json", trial.box.workdir / "servers" / "main" / "state.json"):
        damage(state, trial.draw)


def damage_payload(trial: Trial) -> None:
    trial.end_extractor()
    files = sorted((trial.box.workdir / "payloads" / "current").rglob("*.py"))
    damage(trial.draw.choice([file for file in files if file.stat().st_size]), trial.draw)


def damage_plan(trial: Trial) -> None:
    trial.end_extractor()
    damage(trial.fleet.plan_file(trial.run), trial.draw)
    said = trial.type("extract", "--hosts", "all", "--run", trial.run, "--detach", may_fail=True)
    trial.note(said.strip().splitlines()[-1])
    if "plan.json" not in said:
        raise AssertionError(f"inv extract did not name the plan: {said[-300:]}")


def plan_again(trial: Trial) -> None:
    trial.fleet.begin_run(trial.run, trial.names)


def damage_delivered(trial: Trial) -> None:
    """Change a byte of a delivered shard after its digest was checked, and check that `inv pull --check` notices."""
    trial.fleet.pull(trial.run, trial.destination)
    shard = trial.draw.choice(sorted((trial.destination / "hidden_states").iterdir()))
    flip(shard, trial.draw)
    pulled = trial.fleet.pull(trial.run, trial.destination, check=True)
    if pulled.missing:
        raise AssertionError("inv pull --check did not fetch the damaged record again")


def damage(path: Path, draw: random.Random) -> None:
    """Cut a file short, or write noise over its start or over any part of it."""
    size, noise = path.stat().st_size, draw.randbytes(64)
    kind = draw.choice(("short", "start", "middle"))
    if kind == "short":
        os.truncate(path, draw.randrange(size))
        return
    with path.open("r+b") as stream:
        stream.seek(0 if kind == "start" else draw.randrange(size))
        stream.write(noise)


def flip(path: Path, draw: random.Random) -> None:
    with path.open("r+b") as stream:
        stream.seek(draw.randrange(path.stat().st_size))
        (byte,) = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 0x10]))


def authorize(line: str) -> Action:
    """Put `line` before the client's key in authorized_keys; "" leaves no key."""

    def strike(trial: Trial) -> None:
        key = trial.box.sshd.client_key.with_suffix(".pub").read_text()
        (trial.box.sshd.folder / "authorized_keys").write_text(line + key if line else "")

    return strike


def authorize_again(trial: Trial) -> None:
    trial.box.restart_sshd({})


def crowd(trial: Trial) -> None:
    """Fill all of sshd's places for connections that have not logged in yet."""
    trial.box.restart_sshd({"MaxStartups": "2:100:2", "LoginGraceTime": "600"})
    trial.crowd = [socket.create_connection((trial.box.address, trial.box.ssh_port)) for _ in range(3)]


def disperse(trial: Trial) -> None:
    for stranger in trial.crowd:
        stranger.close()
    trial.box.restart_sshd({})


def shell(text: str) -> Action:
    def strike(trial: Trial) -> None:
        (trial.box.home / ".bashrc").write_text(text)

    return strike


def plain_shell(trial: Trial) -> None:
    (trial.box.home / ".bashrc").unlink()


def no_python(trial: Trial) -> None:
    trial.box.set_python(None)


def old_python(trial: Trial) -> None:
    trial.box.set_python(trial.fleet.python, before="import sys\nsys.version_info = (3, 8, 10, 'final', 0)\n")


def right_python(trial: Trial) -> None:
    trial.box.set_python(trial.fleet.python)
