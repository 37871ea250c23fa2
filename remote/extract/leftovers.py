"""Dumps that nobody waits for any more: of earlier sessions, and of tries that were given up.

Runs on the host, called by the extractor. Deletes only inside a directory that capture marked as Roost's, and there
only files whose request id carries a nonce of this very run.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from remote.capture.request_id import RequestId
from remote.extract.names import request_of

MARK = ".roost"


def sweep(directory: Path, nonces: Collection[str], in_flight: Collection[str]) -> int:
    """Delete this run's dumps whose id is not in flight; returns how many files went."""
    if not (directory / MARK).exists():
        return 0
    removed = 0
    for name in os.listdir(directory):  # noqa: PTH208 -- names alone
        rid = request_of(name)
        found = RequestId.parse(rid)
        if found is not None and found.nonce in nonces and rid not in in_flight:
            (directory / name).unlink(missing_ok=True)
            removed += 1
    return removed
