"""Pictures of pages by a headless Chromium, for the documentation and for tests. Laptop's side."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from hosts.errors import HostError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
INSTALL = "apt-get install chromium"
SECONDS = 90.0


def find_chromium() -> str | None:
    """Return Chromium's path, or None if it is not installed."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def picture(page: Path, target: Path, width: int, height: int, *, dark: bool = False) -> None:
    """Write a picture (PNG) of a page in a file, without network; raises HostError if Chromium makes none."""
    _run(page, width, height, f"--screenshot={target.absolute()}", dark=dark)
    if not target.exists():
        raise HostError(f"Chromium ended without a picture of {page}.")


def document(page: Path, width: int = 1200, height: int = 800) -> str:
    """Return the page's HTML after its scripts have run."""
    return _run(page, width, height, "--dump-dom", dark=False)


def _run(page: Path, width: int, height: int, what: str, *, dark: bool) -> str:
    program = find_chromium()
    if program is None:
        raise HostError("There is no Chromium on this machine.", remedy=f"Install it: {INSTALL}.")
    with tempfile.TemporaryDirectory(prefix="roost-chromium-") as profile:
        command = [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
            *(f"--user-data-dir={profile}", "--virtual-time-budget=8000", f"--window-size={width},{height}"),
            *("--proxy-server=127.0.0.1:9", "--proxy-bypass-list=<-loopback>"),  # a page that needs the network fails
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            *(what, page.absolute().as_uri()),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired as error:
            raise HostError(f"Chromium did not finish {page} within {SECONDS:.0f} s.") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise HostError(f"Chromium ended with {done.returncode} on {page}: {said}")
    return done.stdout
