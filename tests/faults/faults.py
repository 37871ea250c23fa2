"""The faults as data: what is broken, in which step, at which moments, and how a person repairs it.

Read by `tests.faults.trial`. `strike` causes the fault, `mend` is done before the run is resumed, and `restore` repairs
the box after a run that had to finish without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.faults.actions import (
    Action,
    authorize,
    authorize_again,
    behave,
    change_key,
    continue_server,
    crowd,
    cut,
    cut_for_a_while,
    damage_assignment,
    damage_delivered,
    damage_ledger,
    damage_payload,
    damage_plan,
    damage_states,
    disperse,
    empty_disk,
    empty_ramdisk,
    fill_disk,
    fill_inodes,
    fill_ramdisk,
    fill_ramdisk_to_the_last_byte,
    flip_a_byte,
    freeze,
    freeze_for_a_while,
    half_open,
    kill,
    kill_laptop,
    kill_near_end,
    killed_in_a_move,
    killed_while_starting,
    lose,
    made_once,
    make_read_only,
    make_second_run,
    make_writable,
    misbehave,
    move_ledger_away,
    move_to_the_end,
    mute,
    mute_for_a_while,
    new_disk,
    no_python,
    not_a_number,
    nothing,
    offer_once,
    offer_twice,
    old_python,
    plain_shell,
    plan_again,
    plug,
    pull_second_run,
    reboot,
    remove_second_run,
    repair,
    restart_server,
    right_clock,
    right_python,
    second_extract,
    second_pull,
    serve,
    shell,
    step_clock,
    stop_server,
    thaw,
    truncate,
    trust,
    unmute,
)
from tests.faults.box import is_extractor, is_server
from tests.faults.results import RANDOM
from tests.senders import is_sender

Step = Literal["extract", "answer", "pull", "ask"]

MOMENTS = {"first": 0.0, "half": 0.5, "last": 0.9}
"""The share of the victim's records that are finished (extract), or of all records that are delivered (pull)."""
BEFORE = "before"
"""The moment before the step begins."""
NOISY = "echo welcome; echo welcome >&2; printf 'no end of line \\033[2J'\n"
LATIN = "export LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0\n"


@dataclass(frozen=True)
class Fault:
    """One way in which a fleet breaks."""

    name: str
    step: Step
    strike: Action
    mend: Action = nothing
    restore: Action = nothing
    prepare: Action = nothing
    """Done before a pull begins."""
    moments: tuple[str, ...] = (*MOMENTS, RANDOM)
    needs_namespaces: bool = False
    unreachable: bool = False
    """Whether, during the fault, calls to the victim must end in time with a sentence, and the other host answer."""
    gone: bool = False
    """Whether the victim does not come back in time, so that the other host does its share."""
    own_run: bool = False
    """Whether the fault changes the hosts' records, so that a pull needs its own run."""
    begins: bool = False
    """Whether the fault strikes while the extraction is being started."""
    moves: bool = False
    """Whether the victim is so slow that an attached laptop moves its records to the other host."""
    quarantines: bool = False
    """Whether some records end in quarantine instead of at the destination."""
    damages: str = ""
    """The file that `inv status` may name instead of the victim's state."""
    refusal: str = ""
    """Words that the interrupted command must print."""

    @property
    def needs_other(self) -> bool:
        """Whether the fault also concerns the other host."""
        return self.gone or self.unreachable or self.moves


FAULTS = (
    Fault("kill-extractor", "extract", kill(is_extractor)),
    Fault("kill-server", "extract", kill(is_server), serve),
    Fault("freeze-sshd", "extract", freeze, thaw, unreachable=True),
    Fault("cut-5s", "extract", cut_for_a_while, needs_namespaces=True),
    Fault("cut-for-good", "extract", cut, restore=plug, needs_namespaces=True, unreachable=True, gone=True),
    Fault("reboot", "extract", reboot),
    Fault("lose-host-and-disk", "extract", lose, restore=new_disk, unreachable=True, gone=True),
    Fault("disk-full", "extract", fill_disk, empty_disk, needs_namespaces=True),
    Fault("no-inodes", "extract", fill_inodes, empty_disk, needs_namespaces=True),
    Fault("ramdisk-full", "extract", fill_ramdisk, empty_ramdisk, needs_namespaces=True),
    Fault(
        "ramdisk-full-to-the-last-byte",
        "extract",
        fill_ramdisk_to_the_last_byte,
        empty_ramdisk,
        needs_namespaces=True,
    ),
    Fault("read-only-workdir", "extract", make_read_only, make_writable, needs_namespaces=True),
    Fault("restart-server", "extract", restart_server),
    Fault("stop-server", "extract", stop_server, continue_server),
    Fault("server-answers-500", "extract", misbehave("500"), behave),
    Fault("server-hangs", "extract", misbehave("hang"), restart_server),
    Fault("server-answers-for-another", "extract", misbehave("wrong"), behave),
    Fault("server-answers-noise", "extract", misbehave("garbage"), behave),
    Fault("dumps-of-another-record", "extract", misbehave("tokens"), behave),
    Fault("nan", "extract", not_a_number, restore=behave, quarantines=True),
    Fault("clock-forward", "extract", step_clock(5), restore=right_clock, needs_namespaces=True),
    Fault("clock-back", "extract", step_clock(-5), restore=right_clock, needs_namespaces=True),
    Fault("mute-sshd", "extract", mute, unmute, unreachable=True),
    Fault("two-operators", "extract", second_extract),
    Fault("kill-inv-extract", "extract", killed_while_starting, moments=(RANDOM,), begins=True),
    *(
        Fault(
            f"kill-{whom}-in-move",
            "extract",
            killed_in_a_move(whom),
            move_to_the_end,
            made_once,
            moments=(RANDOM,),
            begins=True,
            moves=True,
        )
        for whom in ("giver", "taker", "laptop")
    ),
    Fault("corrupt-ledger", "extract", damage_ledger, move_ledger_away, damages="ledger.sqlite"),
    Fault("corrupt-assignment", "extract", damage_assignment, damages="assignment.json"),
    Fault("corrupt-states", "extract", damage_states, restart_server, damages="state.json"),
    Fault("corrupt-payload", "extract", damage_payload),
    Fault("corrupt-plan", "extract", damage_plan, plan_again),
    Fault("noisy-bashrc", "extract", shell(NOISY), restore=plain_shell, moments=(BEFORE,)),
    Fault("other-locale", "extract", shell(LATIN), restore=plain_shell, moments=(BEFORE,)),
    Fault("kill-answerer", "answer", kill(is_extractor)),
    Fault("kill-answering-server", "answer", kill(is_server), serve),
    Fault("kill-inv-answer", "answer", killed_while_starting, moments=(RANDOM,), begins=True),
    Fault("kill-pull", "pull", kill_laptop),
    Fault("kill-near-end", "pull", kill_near_end),
    Fault("offered-twice-and-cut", "pull", kill_laptop, prepare=offer_twice, restore=offer_once),
    Fault("second-run-into-folder", "pull", pull_second_run, prepare=make_second_run, restore=remove_second_run),
    Fault("two-pulls", "pull", second_pull),
    Fault("mute-sshd-in-pull", "pull", mute_for_a_while),
    Fault("half-open-in-pull", "pull", half_open, needs_namespaces=True),
    Fault("corrupt-delivered", "pull", damage_delivered, moments=(BEFORE,)),
    Fault("kill-sender", "pull", kill(is_sender)),
    Fault("cut-5s-in-pull", "pull", cut_for_a_while, needs_namespaces=True),
    Fault("freeze-sshd-in-pull", "pull", freeze_for_a_while),
    Fault("reboot-in-pull", "pull", reboot),
    Fault("lose-host-in-pull", "pull", lose, restore=new_disk, gone=True, own_run=True, refusal="{victim}"),
    Fault("corrupt-shard", "pull", flip_a_byte, repair, moments=(BEFORE,), own_run=True, refusal="{victim}"),
    Fault("truncated-shard", "pull", truncate, moments=(BEFORE,), own_run=True, refusal="{victim}"),
    Fault("changed-host-key", "pull", change_key, trust, moments=(BEFORE,), refusal="CHANGED"),
    Fault("refused-key", "ask", authorize(""), authorize_again, moments=(BEFORE,), refusal="refused the login"),
    Fault(
        "expired-key",
        "ask",
        authorize('expiry-time="20200101" '),
        authorize_again,
        moments=(BEFORE,),
        refusal="refused the login",
    ),
    Fault("max-startups", "ask", crowd, disperse, moments=(BEFORE,), refusal="could not be reached"),
    Fault("bashrc-exits-1", "ask", shell("exit 1\n"), plain_shell, moments=(BEFORE,), refusal="status 1"),
    Fault("no-python", "ask", no_python, right_python, moments=(BEFORE,), refusal="not found"),
    Fault("old-python", "ask", old_python, right_python, moments=(BEFORE,), refusal="too old"),
)
"""Every fault of the suite; `python -m tests.faults --only NAME` runs one."""
