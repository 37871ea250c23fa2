"""The site of the docs: every task is in the reference, and a dead link fails the build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hosts.tasks.overview import collection
from hosts.tasks.reference import lay_out, reference


@pytest.fixture
def built(tmp_path: Path, clone: Path) -> Path:
    """A folder with the site's source and its configuration."""
    lay_out(tmp_path / "build" / "pages")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "mkdocs.yml").write_bytes((clone / "docs" / "mkdocs.yml").read_bytes())
    return tmp_path


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "docs/mkdocs.yml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_task_stands_in_the_reference_with_its_options() -> None:
    page = reference()
    names = set(collection().task_names) - {"help"}
    assert {name for name in names if f"### inv {name}\n" not in page} == set()
    assert "`--count N` | how many hosts `up` starts (default: 2)" in page
    assert "`--host, -h" not in page


def test_the_pages_build_without_a_dead_link(built: Path) -> None:
    done = build(built)
    assert done.returncode == 0, done.stderr
    assert (built / "build" / "site" / "docs" / "tasks" / "index.html").is_file()


def test_a_dead_link_fails_the_build(built: Path) -> None:
    page = built / "build" / "pages" / "docs" / "pull.md"
    page.write_text(page.read_text() + "\n[nowhere](not-there.md)\n")
    done = build(built)
    assert done.returncode != 0
    assert "not-there.md" in done.stderr
