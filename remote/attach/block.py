"""The lines that the patch appends to a model file, and how they are told from the file around them. Host side.

Pure: bytes in, bytes out. The block knows nothing of hidden states: it hands its module to `remote.capture.hook`, found
on the PYTHONPATH of a server that Roost started, and does nothing in any other. Appending leaves every line of the
original where it was, so tracebacks and other people's line numbers stay true.
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
    """A model file taken apart."""

    above: bytes
    """All that precedes the block: the original, if `intact`."""
    stated_digest: str
    """sha256 of the original as the block states it."""
    body: bytes
    after: bytes
    """What somebody appended behind the block; empty if nobody did."""

    @property
    def intact(self) -> bool:
        """The block stands on exactly the file that it was appended to, and nothing follows it."""
        return sha256(self.above) == self.stated_digest and not self.after

    @property
    def current(self) -> bool:
        """The block is this payload's, not an earlier one's."""
        return self.body == _BODY


def sha256(content: bytes) -> str:
    """Digest as 64 hex digits; wheels state theirs in the same."""
    return hashlib.sha256(content).hexdigest()


def append(original: bytes) -> bytes:
    """Return the file with the block behind it."""
    header = f"\n\n\n# >>> roost capture; the file above it has sha256 {sha256(original)}\n".encode()
    return original + header + _BODY + _END


def split(content: bytes) -> Parts | None:
    """Take a file with a block apart; None if it has none, or one that cannot be read."""
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
