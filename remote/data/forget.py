"""The verb `forget`: removes wrong records from a destination, so that the next pull brings them again.

Runs where the destination is, under its lock. A file is deleted before its row, because a row without a file is pulled
again.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from remote.context import Context
from remote.shared.messages.transfer import Store
from remote.shared.messages.verify import ForgetRequest, ForgetResult
from remote.shared.transfer.destination import Destination
from remote.shared.transfer.manifest import refuse_other


def forget(request: ForgetRequest, context: Context) -> ForgetResult:
    """Delete the files and rows of `request.ranges`."""
    root = Path(request.folder).expanduser()
    refuse_other(Destination(root, folder=request.identity.folder), request.identity)
    indices = [index for start, stop in request.ranges for index in range(start, stop)]
    with Destination(root, folder=request.identity.folder) as destination:
        for index in indices:
            for stored in get_args(Store):
                destination.final(index, stored).unlink(missing_ok=True)
        return ForgetResult(records=destination.ledger.forget(indices))
