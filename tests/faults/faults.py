"""The faults as data: what is broken, in which step, at which moments, and how a person mends it.

Read by `tests.faults.trial`. `strike` breaks the victim, `mend` is what happens before the run is resumed, `restore`
makes the box whole again after a run that had to finish without it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.faults.box import is_extractor, is_sender, is_server, is_sshd
from tests.faults.results import RANDOM

if TYPE_CHECKING:
    from tests.faults.trial import Trial

Action = Callable[["Trial"], None]
Step = Literal["extract", "pull"]

MOMENTS = {"first": 0.0, "half": 0.5, "last": 0.9}
"""Share of the victim's records that are finished (extract), or of all that are delivered (pull)."""
BEFORE = "before"
"""Struck between extraction and pull."""
FULL_SECONDS = 2.0
CUT_SECONDS = 5.0


def nothing(_: Trial) -> None:
    """Mends itself, or has nothing to mend."""


@dataclass(frozen=True)
class Fault:
    """One way in which a fleet breaks."""

    name: str
    step: Step
    strike: Action
    mend: Action = nothing
    restore: Action = nothing
    moments: tuple[str, ...] = (*MOMENTS, RANDOM)
    needs_namespaces: bool = False
    unreachable: bool = False
    """While it lasts, a call to the victim must end in time with a sentence, and the other host must answer."""
    gone: bool = False
    """The victim does not come back in time: the other host does its share."""
    own_run: bool = False
    """Changes what the hosts have, so that a pull needs a run of its own."""
    refusal: str = ""
    """Words that the interrupted command must say."""

    @property
    def needs_other(self) -> bool:
        """Whether it concerns the host that it does not strike."""
        return self.gone or self.unreachable


def _kill(is_meant: Callable[[list[str]], bool]) -> Action:
    def strike(trial: Trial) -> None:
        trial.note(f"{trial.box.signal(signal.SIGKILL, is_meant)} killed")

    return strike


def _wait(seconds: float) -> None:
    """A fault that lasts so long; nothing is awaited."""
    threading.Event().wait(seconds)


def _serve(trial: Trial) -> None:
    trial.box.serve()


def _power_off(trial: Trial) -> None:
    trial.box.power_off()


def _power_on(trial: Trial) -> None:
    trial.box.power_on()
    trial.box.serve()


def _reboot(trial: Trial) -> None:
    _power_off(trial)
    _power_on(trial)


def _lose(trial: Trial) -> None:
    trial.box.power_off()
    trial.box.lose_disk()


def _new_disk(trial: Trial) -> None:
    _power_on(trial)
    trial.fleet.restore_pattern()


def _cut(trial: Trial) -> None:
    trial.box.set_link(False)


def _plug(trial: Trial) -> None:
    trial.box.set_link(True)


def _cut_for_a_while(trial: Trial) -> None:
    _cut(trial)
    _wait(CUT_SECONDS)
    _plug(trial)


def _freeze(trial: Trial) -> None:
    trial.box.signal(signal.SIGSTOP, is_sshd)


def _thaw(trial: Trial) -> None:
    trial.box.signal(signal.SIGCONT, is_sshd)


def _freeze_for_a_while(trial: Trial) -> None:
    _freeze(trial)
    _wait(CUT_SECONDS)
    _thaw(trial)


def _fill_disk(trial: Trial) -> None:
    trial.box.fill_disk()
    _wait(FULL_SECONDS)


def _fill_inodes(trial: Trial) -> None:
    trial.box.fill_disk(inodes=True)
    _wait(FULL_SECONDS)


def _empty_disk(trial: Trial) -> None:
    trial.box.empty_disk()


def _fill_ramdisk(trial: Trial) -> None:
    trial.box.fill_ramdisk()
    _wait(FULL_SECONDS)


def _empty_ramdisk(trial: Trial) -> None:
    trial.box.empty_ramdisk()


def _flip_a_byte(trial: Trial) -> None:
    shard = trial.plant()
    with shard.open("r+b") as stream:
        stream.seek(trial.draw.randrange(shard.stat().st_size))
        (byte,) = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 0x10]))


def _truncate(trial: Trial) -> None:
    shard = trial.plant()
    os.truncate(shard, trial.draw.randrange(shard.stat().st_size))


def _repair(trial: Trial) -> None:
    trial.type("verify", "--hosts", trial.victim, "--run", trial.run, "--repair", may_fail=True)


def _change_key(trial: Trial) -> None:
    trial.box.change_host_key()


def _trust(trial: Trial) -> None:
    trial.fleet.trust()


def _kill_laptop(trial: Trial) -> None:
    trial.kill_command()


FAULTS = (
    Fault("kill-extractor", "extract", _kill(is_extractor)),
    Fault("kill-server", "extract", _kill(is_server), _serve),
    Fault("freeze-sshd", "extract", _freeze, _thaw, unreachable=True),
    Fault("cut-5s", "extract", _cut_for_a_while, needs_namespaces=True),
    Fault("cut-for-good", "extract", _cut, restore=_plug, needs_namespaces=True, unreachable=True, gone=True),
    Fault("reboot", "extract", _reboot),
    Fault("lose-host-and-disk", "extract", _lose, restore=_new_disk, unreachable=True, gone=True),
    Fault("disk-full", "extract", _fill_disk, _empty_disk, needs_namespaces=True),
    Fault("no-inodes", "extract", _fill_inodes, _empty_disk, needs_namespaces=True),
    Fault("ramdisk-full", "extract", _fill_ramdisk, _empty_ramdisk, needs_namespaces=True),
    Fault("kill-pull", "pull", _kill_laptop),
    Fault("kill-sender", "pull", _kill(is_sender)),
    Fault("cut-5s-in-pull", "pull", _cut_for_a_while, needs_namespaces=True),
    Fault("freeze-sshd-in-pull", "pull", _freeze_for_a_while),
    Fault("reboot-in-pull", "pull", _reboot),
    Fault("lose-host-in-pull", "pull", _lose, restore=_new_disk, gone=True, own_run=True, refusal="{victim}"),
    Fault("corrupt-shard", "pull", _flip_a_byte, _repair, moments=(BEFORE,), own_run=True, refusal="{victim}"),
    Fault("truncated-shard", "pull", _truncate, moments=(BEFORE,), own_run=True, refusal="{victim}"),
    Fault("changed-host-key", "pull", _change_key, _trust, moments=(BEFORE,), refusal="CHANGED"),
)
"""Every fault of the suite; `python -m tests.faults --only NAME` runs one."""
