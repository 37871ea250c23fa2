"""What a capturing SGLang process says about itself, in its dump directory's `.capture-<pid>.json`."""

from __future__ import annotations

from remote.shared.messages.envelope import Message
from remote.shared.messages.server import FinalNorm


class CaptureStatus(Message):
    """Rewritten whole, at most once a second. Only a writing rank has one."""

    pid: int
    version: str
    """Of capture; `remote.capture.VERSION`."""
    payload: str
    """Digest of the payload that the code was loaded from; its folder's name."""
    sglang: str
    boundaries: list[int]
    """The slots of a record, in order; the last one is n."""
    final: FinalNorm
    stage: int = 0
    """Pipeline stage of this process, from 0; parts of a record are joined where there are several."""
    stages: int = 1
    records: int = 0
    """Written whole."""
    failed: int = 0
    """Answered with an `.error.json`."""
    rows: int = 0
    bytes_written: int = 0
    in_flight: int = 0
    """Records begun and not yet ended."""
    forward_waits: int = 0
    """Times that the forward pass waited because what lies behind it was full: the back-pressure."""
    forward_wait_seconds: float = 0.0
    directory_waits: int = 0
    """Times that rows waited on the device because the dump directory was at its high-water mark."""
    directory_wait_seconds: float = 0.0
    ring_waits: int = 0
    """Times that they waited because all staging memory was still being written out."""
    ring_wait_seconds: float = 0.0
    capture_seconds: float = 0.0
    """Of the forward thread's own time, waits included."""
    last_cause: str = ""
    """Why the newest failed record failed."""
    updated_at: float = 0.0
