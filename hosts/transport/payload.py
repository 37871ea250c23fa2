"""The payload: this checkout's `remote/` as one archive, addressed by the digest of its files."""

from __future__ import annotations

import gzip
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import remote
from hosts.transport.bootstrap import tree_digest

SOURCE = Path(remote.__file__).parent


@dataclass(frozen=True)
class Payload:
    """`archive` is a tar.gz whose members start with `remote/`; `digest` names its folder on a host."""

    digest: str
    archive: bytes


@cache
def current_payload() -> Payload:
    """Pack `remote/` as it is now; once a process, so that all hosts of one command get the same."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for path in sorted(SOURCE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                tar.addfile(*_member(path))
    return Payload(tree_digest(str(SOURCE)), packed.getvalue())


def _member(path: Path) -> tuple[tarfile.TarInfo, io.BytesIO]:
    content = path.read_bytes()
    info = tarfile.TarInfo(f"remote/{path.relative_to(SOURCE).as_posix()}")
    info.size = len(content)
    info.mode = 0o600
    return info, io.BytesIO(content)
