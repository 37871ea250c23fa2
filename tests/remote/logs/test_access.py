"""Which lines of a server's log are noise: probes and Roost's own requests that went well."""

from __future__ import annotations

import pytest

from remote.logs.pattern import Pattern

NOISE = [
    '[2026-12-01 03:26:42] INFO:     127.0.0.1:43210 - "GET /health HTTP/1.1" 200 OK',
    'INFO:     127.0.0.1:43210 - "POST /generate HTTP/1.1" 200 OK',
    'INFO:     127.0.0.1:9 - "GET /get_model_info?x=1 HTTP/1.1" 200 OK',
]
NEWS = [
    'INFO:     127.0.0.1:43210 - "POST /generate HTTP/1.1" 500 Internal Server Error',
    'INFO:     192.0.2.7:43210 - "POST /generate HTTP/1.1" 200 OK',
    'INFO:     127.0.0.1:43210 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "[2026-12-01 03:26:42] Prefill batch, #new-seq: 1, #new-token: 512",
]


@pytest.mark.parametrize("line", NOISE)
def test_requests_of_roost_that_went_well_are_left_out_unless_asked_for(line: str) -> None:
    assert not Pattern("", access=False).search(line)
    assert Pattern("", access=True).search(line)
    assert not Pattern("INFO", access=False).search(line)


@pytest.mark.parametrize("line", NEWS)
def test_everything_else_is_shown(line: str) -> None:
    assert Pattern("", access=False).search(line)
