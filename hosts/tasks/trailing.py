"""Writes the laptop's trail: when a command began and how it ended, beside the inventory that it used.

Laptop's side, used by `session` for every task that changes something. The line is written once the inventory and the
hosts are known; wrong usage that is found before that leaves no line, and later it ends as `refused`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hosts import typed
from hosts.console.output import EXIT_USAGE, Output
from hosts.inventory.kept import Kept
from hosts.tasks import interrupts
from remote.shared.messages.trail import Ending
from remote.shared.trail import Command, Trail

_begun: list[Command] = []
"""The command of this process, or None until its line is written."""


@contextmanager
def in_trail(changes: bool) -> Iterator[None]:
    """Write the block's command to the trail if it changes something."""
    if not changes:
        yield
        return
    typed.begin()
    interrupts.before_leaving.append(_interrupted)
    ending: Ending = "failed"
    try:
        yield
        ending = "ok"
    except SystemExit as error:
        ending = "ok" if not error.code else "refused" if error.code == EXIT_USAGE else "failed"
        raise
    finally:
        interrupts.before_leaving.remove(_interrupted)
        _end(ending)


def note_in_trail(inventory: Path, hosts: Sequence[str], output: Output) -> None:
    """Write once that the command begins; do nothing for a command that changes nothing."""
    command = typed.current()
    if not command.id or _begun:
        return
    _begun.append(Command(Trail(Kept.beside(inventory).trail), command, typed.operator(), hosts=list(hosts)))
    if _begun[0].lost:
        output.note(_begun[0].lost)


def _interrupted() -> None:
    _end("interrupted")


def _end(ending: Ending) -> None:
    typed.forget()
    while _begun:
        _begun.pop().end(ending)
