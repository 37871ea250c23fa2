"""The verb `hello`: the cheapest request, which also sends the payload if the host lacks it."""

from __future__ import annotations

import platform
import sys
import time

from remote.context import Context
from remote.shared.messages.hello import HelloRequest, HelloResult


def hello(request: HelloRequest, context: Context) -> HelloResult:
    """Say which Python and payload run here, and what the host's clock shows (Unix seconds)."""
    return HelloResult(
        python=sys.executable,
        version=platform.python_version(),
        payload=context.payload.name,
        workdir=str(context.workdir.root),
        clock_at=time.time(),
    )
