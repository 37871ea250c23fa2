"""What a webhook is sent: the plain document, or the text that Slack takes, in which a host's words are no markup."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from remote.shared.webhook import Form, body, post

NOTIFICATION = {
    "event": "failed", "host": "gpu1", "subject": "server main", "message": "<!channel> & <https://evil|ok>", "at": 1.0,
}  # fmt: skip


def test_slack_gets_one_text_whose_markup_is_escaped() -> None:
    assert json.loads(body("slack", NOTIFICATION)) == {
        "text": "gpu1: server main failed: &lt;!channel&gt; &amp; &lt;https://evil|ok&gt;"
    }


def test_other_webhooks_get_the_unchanged_document() -> None:
    assert json.loads(body("json", NOTIFICATION)) == NOTIFICATION


@pytest.mark.parametrize("form", ["json", "slack"])
def test_a_notification_arrives_as_json(form: Form) -> None:
    got: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            got.append((self.headers["Content-Type"], json.loads(self.rfile.read(length))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        post(f"http://127.0.0.1:{server.server_port}/", form, NOTIFICATION)
    assert got == [("application/json", json.loads(body(form, NOTIFICATION)))]
