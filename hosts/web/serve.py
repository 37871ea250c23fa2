"""Serves a web application on this laptop until Ctrl-C. Called by `inv watch --web` and `inv metrics`."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from hosts.errors import UsageError
from hosts.series.view import FleetView

GRACE_SECONDS = 1
"""Seconds after which open event streams are cut at the end, because they never end by themselves."""


def listen(address: str, port: int, option: str) -> socket.socket:
    """Return a listening socket; port 0 chooses a free port. Raises UsageError, which names the `option` to change."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"Roost cannot listen on {address} port {port}: {reason}.", remedy=f"Choose another with {option}."
        ) from error


def serve(
    app: Callable[[Callable[[], FleetView]], Starlette], view: Callable[[], FleetView], sock: socket.socket
) -> None:
    """Serve `app` until Ctrl-C, which raises KeyboardInterrupt.

    If the view fails, the server ends and the view's exception is raised.
    """
    faults: list[BaseException] = []

    def watched() -> FleetView:
        try:
            return view()
        except BaseException as error:
            faults.append(error)
            server.should_exit = True
            raise

    config = uvicorn.Config(
        app(watched),
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=128,
        server_header=False,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[sock])
    if faults:
        raise faults[0]
