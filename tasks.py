"""The command line: `inv --list`, `inv help`. Every task lives in `hosts/tasks/`; `catalog.py` there gathers them."""

from __future__ import annotations

from hosts.tasks import interrupts

interrupts.leave_at_once()

from hosts.console.text import write_to_any_terminal  # noqa: E402
from hosts.tasks.commandline import explain_mistakes  # noqa: E402  a second of imports, in which Ctrl-C must work already
from hosts.tasks.overview import collection  # noqa: E402

write_to_any_terminal()
explain_mistakes()
namespace = collection()
