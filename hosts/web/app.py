"""The web application: the live page behind a token, and the metrics. Laptop's side; changes nothing on hosts.

A page gets one event a second with the complete state, so a browser that slept is up to date at the next event. If a
browser does not read, the server's flow control stops its stream, and no events accumulate.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
from anyio import to_thread
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from hosts.console.text import printable
from hosts.errors import RoostError
from hosts.series.view import FleetView
from hosts.web.metrics import FleetCollector
from hosts.web.state import state

PAGE = Path(__file__).with_name("page.html")
EVERY_SECONDS = 1.0
MOST_STREAMS = 32
"""Open pages at once; more would be a loop in some program."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

View = Callable[[], FleetView]
Tail = Callable[[str], list[str]]


def page_app(view: View, tail: Tail, token: str) -> Starlette:
    """Return the live page at `/TOKEN/`; any other token is refused."""
    page = Page(view, tail, token)
    routes = [
        Route("/{token}/", page.document),
        Route("/{token}/events", page.events),
        Route("/{token}/log", page.log),
    ]
    return Starlette(routes=routes, middleware=[_known_names()])


def metrics_app(view: View) -> Starlette:
    """Return the metrics at `/metrics`."""
    registry = CollectorRegistry()
    registry.register(FleetCollector(view))

    def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=content_type)

    return Starlette(routes=[Route("/metrics", metrics)])


def _known_names() -> Middleware:
    """Refuse other names of this machine, because a foreign web page could make its own name point to this address."""
    return Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"], www_redirect=False)


class Page:
    """The three answers of the live page."""

    def __init__(self, view: View, tail: Tail, token: str) -> None:
        self._view, self._tail, self._token = view, tail, token
        self._streams = 0
        self._told = ""
        self._told_at = float("-inf")

    async def document(self, request: Request) -> Response:
        """Return the page. The token is also the nonce of the page's only script and only style."""
        if wrong := self._refused(request):
            return wrong
        nonce = self._token
        headers = {name: value.format(nonce) for name, value in _HEADERS.items()}
        return Response(PAGE.read_text().replace("NONCE", nonce), media_type="text/html", headers=headers)

    async def events(self, request: Request) -> Response:
        """Stream the state every second as server-sent events."""
        if wrong := self._refused(request):
            return wrong
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse(f"{MOST_STREAMS} pages are already open. Close a page and reload.\n", 503)
        return StreamingResponse(self._stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def log(self, request: Request) -> Response:
        """Return the end of a host's log, which is read now."""
        if wrong := self._refused(request):
            return wrong
        name = request.query_params.get("host", "")
        if name not in {host.name for host in self._view().hosts}:
            return PlainTextResponse("There is no such host on this page.\n", 404)
        try:
            lines = await to_thread.run_sync(self._tail, name)
        except RoostError as error:
            lines = [error.message]
        return PlainTextResponse("\n".join(printable(line) for line in lines), headers={"Cache-Control": "no-store"})

    def _refused(self, request: Request) -> Response | None:
        given = request.path_params["token"]
        if hmac.compare_digest(given.encode(), self._token.encode()):
            return None
        return PlainTextResponse("This is not the page's address; inv watch --web prints it.\n", 403)

    async def _stream(self) -> AsyncIterator[str]:
        self._streams += 1
        try:
            while True:
                yield f"data: {self._state()}\n\n"
                await anyio.sleep(EVERY_SECONDS)
        finally:
            self._streams -= 1

    def _state(self) -> str:
        """Return the state as JSON, made once a second for all open pages."""
        if time.monotonic() - self._told_at >= EVERY_SECONDS / 2:
            self._told, self._told_at = json.dumps(state(self._view())), time.monotonic()
        return self._told
