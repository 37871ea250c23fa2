"""The payload: this checkout's `remote/` as one archive, addressed by the digest of its files."""

from __future__ import annotations

import gzip
import io
import tarfile
import threading
from pathlib import Path

import remote
from hosts.transport.bootstrap import content_digest, digest_of, files_below

SOURCE = Path(remote.__file__).parent


class Payload:
    """A copy of `remote/` at one moment. `digest` is the name of its folder on a host."""

    def __init__(self, source: Path) -> None:
        self._files = [(name, Path(path).read_bytes()) for name, path in files_below(str(source), "", None)]
        self.digest = digest_of((name, content_digest(content)) for name, content in self._files)
        self._archive = b""
        self._lock = threading.Lock()

    @property
    def archive(self) -> bytes:
        """A tar.gz whose members start with `remote/`. It is packed once, and only if a host lacks the payload."""
        with self._lock:  # up to 64 threads, one a host, ask at once
            self._archive = self._archive or self._packed()
            return self._archive

    def _packed(self) -> bytes:
        packed = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w") as tar,
        ):
            for name, content in self._files:
                info = tarfile.TarInfo(f"remote/{name}")
                info.size = len(content)
                info.mode = 0o600
                tar.addfile(info, io.BytesIO(content))
        return packed.getvalue()


_made: list[Payload] = []
_making = threading.Lock()


def current_payload() -> Payload:
    """Return `remote/` as it is at the process's first call, so that all hosts of one command get the same payload."""
    with _making:
        if not _made:
            _made.append(Payload(SOURCE))
        return _made[0]
