"""`python -m remote VERB`: one JSON line (`messages.envelope.Call`) on stdin, JSON lines on stdout.

By hand, and for other launchers (Slurm, Ray, a container's entrypoint), a request's fields can be options:
`python -m remote extract --workdir ~/roost --assignment FILE` reads no stdin. With `--output log` it writes a log for
people instead of JSON lines.

This module begins and ends the process; `remote.verbs.run` runs the verb. Most of a short call's CPU time is its
imports, so this module leaves out what costs a short call time and gives it nothing: 13 ms of 100 for pydantic's
plugins, 10 ms for the release of every object at the end, 5 ms for garbage collection during the imports.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from contextlib import suppress
from types import ModuleType

PLUGINS = "pydantic.plugin._loader"


def start(arguments: list[str]) -> int:
    """Run the verb that the command line or stdin names; return the exit code."""
    gc.disable()  # until the verb itself runs: imports make many objects and no garbage
    _without_plugins()
    from remote.verbs.run import main

    return main(arguments)


def _without_plugins() -> None:
    """Keep pydantic from looking for plugins.

    It would read the metadata of every package of the host's environment, and a plugin that it finds would see every
    request. `PYDANTIC_DISABLE_PLUGINS` would prevent neither the import of `importlib.metadata` nor its own inheritance
    by the servers that a verb starts.
    """
    stand_in = ModuleType(PLUGINS)
    stand_in.get_plugins = tuple  # type: ignore[attr-defined]
    sys.modules[PLUGINS] = stand_in


def end(code: int) -> None:
    """End the process without releasing its objects one by one, unless a library's thread has to be waited for."""
    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    end(start(sys.argv[1:]))
