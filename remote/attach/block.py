"""The lines that the patch appends to a model file, and their separation from the file. Host side.

Pure: bytes in, bytes out. The block knows nothing of hidden states. It hands its module to `remote.capture.hook`, which
is on the PYTHONPATH of a server that Roost started; in any other process it does nothing. Appending keeps the line
numbers of the original, so that tracebacks stay right.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

BEGIN = b"# >>> roost capture"
_HEADER = re.compile(rb"\n\n\n# >>> roost capture; the file above it has sha256 ([0-9a-f]{64})\n")
_END = b"# <<< roost capture\n"
_BODY = b"""\
# Appended by `inv attach`, taken out by `inv detach`. Dormant unless SGLANG_HS_DUMP_DIR is set.
import os as _roost_os

_roost_block = 1
if _roost_os.environ.get("SGLANG_HS_DUMP_DIR"):
    try:
        from remote.capture.hook import install_in as _roost_install_in

        _roost_install_in(__name__)
    except Exception:  # the server goes on without capture, and Roost's own check at its start says so
        import logging as _roost_logging

        _roost_logging.getLogger(__name__).exception("Roost's capture is not active")
"""


@dataclass(frozen=True)
class Parts:
    """The parts of a model file with a block."""

    above: bytes
    """Everything before the block: the original, if `intact`."""
    stated_digest: str
    """sha256 of the original as the block states it."""
    body: bytes
    after: bytes
    """Text that was appended after the block; empty if there is none."""

    @property
    def intact(self) -> bool:
        """Whether the file before the block is unchanged and nothing follows the block."""
        return sha256(self.above) == self.stated_digest and not self.after

    @property
    def current(self) -> bool:
        """Whether the block is this payload's rather than an earlier one's."""
        return self.body == _BODY


def sha256(content: bytes) -> str:
    """Return the sha256 as 64 hex digits, as wheels state it."""
    return hashlib.sha256(content).hexdigest()


def append(original: bytes) -> bytes:
    """Return the file with the block appended."""
    header = f"\n\n\n# >>> roost capture; the file above it has sha256 {sha256(original)}\n".encode()
    return original + header + _BODY + _END


def split(content: bytes) -> Parts | None:
    """Split a file with a block into its parts; None if it has no block, or one that cannot be read."""
    headers = list(_HEADER.finditer(content))
    if len(headers) != 1 or content.count(_END) != 1:
        return None
    header = headers[0]
    end = content.find(_END, header.end())
    if end < 0:
        return None
    return Parts(
        above=content[: header.start()],
        stated_digest=header.group(1).decode(),
        body=content[header.end() : end],
        after=content[end + len(_END) :],
    )
