"""A server's logs: one for each start, never overwritten; `current` points to the newest.

Runs on the host, called by the supervisor (`create`) and by `serve` (`tail`).
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from remote.shared.files import is_own, make_directory, open_own, read_own
from remote.shared.messages.server import ServerSpec
from remote.shared.paths import ServerPaths

TAIL_BYTES = 256 << 10
"""A crash in eight ranks prints eight tracebacks of some tens of KiB each."""


def log_path(paths: ServerPaths, spec: ServerSpec, start: int) -> Path:
    """Return the path of the log of start number `start`."""
    own = paths.log(start)
    return own if spec.log_dir is None else Path(spec.log_dir).expanduser() / own.name


def next_start(paths: ServerPaths, spec: ServerSpec) -> int:
    """Return the number of the next start: one more than the highest number of any log of this server."""
    folder = log_path(paths, spec, 1).parent
    form = re.compile(rf"{re.escape(paths.root.name)}_v(\d+)\.log")
    found = [form.fullmatch(path.name) for path in folder.glob(f"{paths.root.name}_v*.log")]
    return 1 + max((int(match.group(1)) for match in found if match), default=0)


def create(paths: ServerPaths, path: Path) -> int:
    """Create the log, point `current` to it and return a descriptor for appending; raises FileExistsError."""
    make_directory(path.parent)
    make_directory(paths.logs)
    descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    if path.parent != paths.logs:
        _note(paths, path)
    target = path.name if path.parent == paths.logs else str(path)
    link = paths.logs / f".current-{secrets.token_hex(4)}"
    link.symlink_to(target)
    link.replace(paths.current_log)
    return descriptor


def written(paths: ServerPaths) -> list[Path]:
    """Return the logs that this server of this workdir wrote, oldest first, as far as they are this user's files.

    A `log_dir` may be shared with other workdirs (for example on a shared file system) whose servers have the same
    names. Only logs that this server itself noted count as its own.
    """
    own = sorted(paths.logs.glob(f"{paths.root.name}_v*.log"))
    try:
        noted = [Path(line) for line in read_own(paths.written_logs).decode().splitlines()]
    except (OSError, UnicodeDecodeError):
        noted = []
    return [log for log in dict.fromkeys([*own, *noted]) if is_own(log)]


def _note(paths: ServerPaths, path: Path) -> None:
    descriptor = open_own(paths.written_logs, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, f"{path}\n".encode())
    finally:
        os.close(descriptor)


def tail(path: Path, size: int = TAIL_BYTES) -> str:
    """Return the last `size` bytes of the log as text, starting at a whole line; "" if there is no log."""
    try:
        with os.fdopen(open_own(path), "rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, end - size))
            content = stream.read()
    except OSError:
        return ""
    if end > size:
        content = content.partition(b"\n")[2]
    return content.decode("utf-8", "replace")
