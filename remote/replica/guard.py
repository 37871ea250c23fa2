"""A process that ends the replica's servers if the replica itself is killed. Runs on the node, beside the replica.

`python -m remote.replica.guard WORKDIR` waits until its stdin ends. The kernel closes that pipe in every way in which
the replica can die. If the engine kills a whole job at once (a cgroup), the servers and the guard die with the replica.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remote.context import Context
from remote.report import LogReport
from remote.shared.messages.server import StopRequest
from remote.shared.paths import Workdir

GRACE_SECONDS = 5.0
ENDED = b"ended"


@contextmanager
def posted(scratch: Context) -> Iterator[None]:
    """Run a guard that watches this process until the block ends."""
    argv = [sys.executable, "-m", "remote.replica.guard", str(scratch.workdir.root.resolve())]
    guard = subprocess.Popen(argv, cwd=scratch.payload, stdin=subprocess.PIPE, start_new_session=True)
    assert guard.stdin is not None
    try:
        yield
    finally:
        guard.stdin.write(ENDED)
        guard.stdin.close()
        guard.wait(GRACE_SECONDS)


def main(workdir: Path) -> None:
    """Wait for the replica's end, and end its servers unless the replica said that it has ended them."""
    if sys.stdin.buffer.read() == ENDED:
        return
    from remote.servers.lifecycle.stop import stop

    context = Context(Workdir(workdir), LogReport(sys.stderr), "guard")
    stop(StopRequest(grace_seconds=GRACE_SECONDS, wait_for_lock=True), context)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
