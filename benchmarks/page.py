"""Pictures of the live page (`inv watch --web`) for the documentation, from the recorded practice run.

    .venv/bin/python -m benchmarks.page [--docs docs]

The recording (`benchmarks.watching`) has one host at work, one paused and one lost. The page is served by the real
server and drawn by the system's Chromium.
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

from hosts.practice.chromium import INSTALL, find_chromium
from hosts.web.app import page_app
from hosts.web.serve import listen, serve
from tests.views import recorded_fleet

TOKEN = "recorded"
SIZES: tuple[tuple[str, int, int, Literal["light", "dark"]], ...] = (
    ("page", 1280, 560, "light"),
    ("page-dark", 1280, 560, "dark"),
    ("page-narrow", 400, 900, "light"),
)


def main() -> None:
    """Draw every size."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--docs", type=Path, default=Path("docs"))
    docs = options.parse_args().docs
    program = find_chromium()
    if program is None:
        raise SystemExit(f"There is no Chromium here; type: {INSTALL}")
    sock = listen("127.0.0.1", 0, "--port")
    address = f"http://127.0.0.1:{sock.getsockname()[1]}/{TOKEN}/"
    app = lambda view: page_app(view, lambda host: [f"the log of {host}"], TOKEN)  # noqa: E731
    threading.Thread(target=serve, args=(app, recorded_fleet, sock), daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, width, height, scheme in SIZES:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(address)
            page.wait_for_selector("#hosts tr")
            page.screenshot(path=docs / f"{name}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
