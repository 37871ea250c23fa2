"""The status of a capturing SGLang process, in its dump directory's `.capture-<pid>.json`."""

from __future__ import annotations

from remote.shared.messages.envelope import Message
from remote.shared.messages.server import FinalNorm


class CaptureStatus(Message):
    """Rewritten as a whole, at most once a second. Only ranks that write records have one."""

    pid: int
    version: str
    """The version of capture, `remote.capture.VERSION`."""
    payload: str
    """The digest of the payload that the code was loaded from, which is also its folder's name."""
    sglang: str
    boundaries: list[int]
    """The slots of a record, in order; the last one is n."""
    final: FinalNorm
    stage: int = 0
    """The pipeline stage of this process, from 0. With several stages, the parts of a record are joined later."""
    stages: int = 1
    records: int = 0
    """Records that were written completely."""
    failed: int = 0
    """Records that were answered with an `.error.json`."""
    rows: int = 0
    bytes_written: int = 0
    in_flight: int = 0
    """Records that have begun and not ended."""
    forward_waits: int = 0
    """How often the forward pass waited for capture: the back-pressure."""
    forward_wait_seconds: float = 0.0
    directory_waits: int = 0
    """How often rows waited on the device because the dump directory was at its high-water mark."""
    directory_wait_seconds: float = 0.0
    ring_waits: int = 0
    """How often rows waited because all staging memory was still being written out."""
    ring_wait_seconds: float = 0.0
    capture_seconds: float = 0.0
    """Time of the forward thread that capture took, including waits."""
    last_cause: str = ""
    """Why the most recent failed record failed."""
    updated_at: float = 0.0
