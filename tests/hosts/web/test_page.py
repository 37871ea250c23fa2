"""The live page: who may read it, slow and greedy readers, and its view in a real browser."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import requests
from playwright.sync_api import Page, expect, sync_playwright

from hosts.errors import UsageError
from hosts.practice.chromium import INSTALL, find_chromium
from hosts.series.view import FleetView
from hosts.web import app
from hosts.web.serve import listen
from hosts.web.state import state
from tests.hosts.web.conftest import HOSTILE, TOKEN, Moving, Served, glance, host, lost

Start = Callable[..., Served]
PATIENT = 30_000
"""Milliseconds."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    program = find_chromium()
    if program is None:
        pytest.skip(f"There is no Chromium here; type: {INSTALL}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def problems() -> list[str]:
    """Errors that the browser itself told of: of scripts, and of the content security policy."""
    return []


@pytest.fixture
def page(chromium: Any, problems: list[str]) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    yield opened
    context.close()


def test_the_page_follows_the_fleet_and_shows_a_host_that_is_lost(
    start: Start, moving: Moving, page: Page, problems: list[str]
) -> None:
    page.goto(start().page)
    rows = page.locator("#hosts tr")
    expect(rows).to_have_count(2, timeout=PATIENT)
    expect(rows.first).to_contain_text("10 / 100")
    expect(page.locator("#fleet")).to_contain_text("20 of 200 records")
    moving.hosts = [host("gpu1", 55), lost("gpu2")]
    expect(rows.first).to_contain_text("55 / 100", timeout=PATIENT)
    expect(page.locator("#lost")).to_have_text("Lost: gpu2", timeout=PATIENT)
    assert page.title().startswith("! ")
    assert page.locator("#hosts polyline").first.get_attribute("points")
    assert problems == []


def test_hostile_text_from_a_host_is_shown_as_text(
    start: Start, moving: Moving, page: Page, problems: list[str]
) -> None:
    moving.hosts = [lost("gpu1"), host(HOSTILE)]
    page.goto(start().page)
    expect(page.locator("#hosts tr").first).to_contain_text(HOSTILE, timeout=PATIENT)
    expect(page.locator("#events")).to_contain_text(HOSTILE)
    page.get_by_role("button", name=HOSTILE).click()
    expect(page.locator("#detail-log")).to_contain_text(HOSTILE, timeout=PATIENT)
    assert page.title() != "owned"
    assert page.locator("img").count() == 0
    assert problems == []


def test_the_keyboard_alone_opens_a_hosts_log_and_closes_it(start: Start, moving: Moving, page: Page) -> None:
    page.goto(start().page)
    expect(page.locator("#hosts tr")).to_have_count(2, timeout=PATIENT)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#detail-log")).to_contain_text("the log of gpu1", timeout=PATIENT)
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()
    assert moving.asked == ["gpu1"]


def test_a_page_whose_server_was_gone_says_so_and_goes_on_when_it_is_back(start: Start, page: Page) -> None:
    served = start()
    page.goto(served.page)
    expect(page.locator("#age")).to_have_text("Live", timeout=PATIENT)
    served.end()
    expect(page.locator("#age")).to_contain_text("Nothing heard", timeout=PATIENT)
    start(served.port)
    expect(page.locator("#age")).to_have_text("Live", timeout=PATIENT)


@pytest.mark.parametrize("width", [400, 800, 2000])
def test_no_text_is_cut_off_at_any_width(start: Start, moving: Moving, page: Page, width: int) -> None:
    moving.hosts = [replace(host("a-host-with-a-rather-long-name.example.org"), glance=glance(3, "draining 12"))]
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(start().page)
    expect(page.locator("#hosts tr")).to_have_count(1, timeout=PATIENT)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/events", "/wrong/log?host=gpu1", f"/{TOKEN}x/"])
def test_without_the_token_no_state_is_served(start: Start, path: str) -> None:
    answer = requests.get(start().address + path, timeout=10)
    assert answer.status_code in {403, 404}
    assert "gpu1" not in answer.text


def test_another_name_of_this_machine_is_refused(start: Start) -> None:
    answer = requests.get(start().page, headers={"Host": "evil.example"}, timeout=10)
    assert answer.status_code == 400


def test_a_host_that_is_not_shown_has_no_log(start: Start, moving: Moving) -> None:
    assert requests.get(f"{start().page}log?host=other", timeout=10).status_code == 404
    assert moving.asked == []


def test_too_many_open_pages_are_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_STREAMS", 1)
    served = start()
    with requests.get(f"{served.page}events", stream=True, timeout=10) as first:
        lines = first.iter_lines(chunk_size=1)  # the answer ends with its iterator
        assert json.loads(next(lines)[len(b"data: ") :])["hosts"]
        assert requests.get(f"{served.page}events", timeout=10).status_code == 503


def test_a_browser_that_never_reads_is_held_back(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    told, made = app.Page._state, [0]

    def counted(page: app.Page) -> str:
        made[0] += 1
        return told(page)

    monkeypatch.setattr(app, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(app.Page, "_state", counted)
    served = start()
    with socket.socket() as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        mute.connect(("127.0.0.1", served.port))
        mute.sendall(f"GET /{TOKEN}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        deadline, before = time.monotonic() + 30, -1
        while made[0] == 0 or made[0] != before:
            assert time.monotonic() < deadline, f"{made[0]} states were made for a browser that reads none"
            before = made[0]
            time.sleep(1)
        assert requests.get(served.page, timeout=10).status_code == 200


def test_a_view_that_fails_ends_the_server_with_its_cause(start: Start, moving: Moving) -> None:
    served = start()
    moving.fault = RuntimeError("a listening thread ended")
    with requests.get(f"{served.page}events", stream=True, timeout=10):
        assert served.ended.wait(30)
    assert str(served.error) == "a listening thread ended"


def test_a_port_in_use_is_one_sentence(start: Start) -> None:
    with pytest.raises(UsageError, match=r"Roost cannot listen on 127\.0\.0\.1 port \d+: Address already in use"):
        listen("127.0.0.1", start().port, "--port")


def test_two_hundred_hosts_are_a_hundred_kilobytes() -> None:
    rates = tuple((float(at), 1000.0 + at) for at in range(240))
    fleet = FleetView(time.time(), [host(f"gpu{number}", rates=rates) for number in range(200)])
    assert len(json.dumps(state(fleet))) < 120_000
