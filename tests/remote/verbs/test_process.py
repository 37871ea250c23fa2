"""How the process of a verb begins and ends: what a call that does nothing imports, and what happens at its end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Python's list lacks `remote.verbs.hello` itself, which `importlib.import_module` loads, but has what that imports.
ROOST = {
    "remote",
    "remote.context",
    "remote.report",
    "remote.shared",
    "remote.shared.errors",
    "remote.shared.messages",
    "remote.shared.messages.envelope",
    "remote.shared.messages.hello",
    "remote.shared.paths",
    "remote.shared.supervised",
    "remote.shared.supervised.threads",
    "remote.verbs",
    "remote.verbs.run",
}
PACKAGES = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
HEAVY = {"asyncio", "concurrent", "email", "http", "logging", "multiprocessing", "sqlite3", "subprocess", "zipfile"}
"""Parts of the standard library that a call which does nothing has no use for."""


def imported(folder: Path) -> set[str]:
    """Return the modules that the verb `hello` imports, without those that Python and its `.pth` files import first."""
    argv = [sys.executable, "-X", "importtime", "-m", "remote", "hello"]
    said = folder / "said"
    with said.open("w") as stderr:
        verb = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT)
    assert verb.stdin
    assert verb.stdout
    with verb:
        print(json.dumps({"verb": "hello", "workdir": str(folder), "tethered": True}), file=verb.stdin, flush=True)
        assert json.loads(verb.stdout.read())["value"]["workdir"] == str(folder)  # stdin stays open until the end
    assert verb.returncode == 0
    names = re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", said.read_text(), re.MULTILINE)
    return set(names[names.index("site") + 1 :])


@pytest.mark.processes
def test_a_call_that_does_nothing_imports_the_envelope_and_its_own_messages_only(tmp_path: Path) -> None:
    modules = imported(tmp_path)
    assert {name for name in modules if name.partition(".")[0] == "remote"} == ROOST
    tops = {name.partition(".")[0] for name in modules}
    standard = {*sys.stdlib_module_names, "org"}  # `copy` looks for Jython's `org.python`
    assert {name for name in tops - standard - {"remote"} if not name.startswith("_")} <= PACKAGES
    assert not tops & HEAVY
    assert "importlib.metadata" not in modules, "pydantic looked for plugins"


def ended(code: str) -> subprocess.CompletedProcess[str]:
    """Run a process that calls `end` after `code`, with its output as buffered as a verb's."""
    script = f"import atexit, sys, threading\nfrom remote.__main__ import end\n{textwrap.dedent(code)}\nend(3)\n"
    argv = [sys.executable, "-c", script]
    return subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)


@pytest.mark.processes
@pytest.mark.parametrize("daemon", [True, False])
def test_a_process_ends_with_its_exit_code_after_its_output_and_its_exit_handlers(daemon: bool) -> None:
    code = f"""
    atexit.register(print, "handled")
    threading.Thread(target=threading.Event().wait, args=[None if {daemon} else 0.1], daemon={daemon}).start()
    print("said")
    """
    process = ended(code)
    assert (process.returncode, process.stdout.splitlines()) == (3, ["said", "handled"]), process.stderr


@pytest.mark.processes
def test_a_library_s_thread_is_waited_for_at_the_end() -> None:
    code = """
    from concurrent.futures import ThreadPoolExecutor
    begun, released = threading.Event(), threading.Event()
    def work():
        begun.set()
        released.wait(30)
        print("done")
    pool = ThreadPoolExecutor(1)
    pool.submit(work)
    begun.wait(30)
    threading._register_atexit(released.set)
    """
    process = ended(code)
    assert (process.returncode, process.stdout) == (3, "done\n"), process.stderr


@pytest.mark.processes
def test_an_output_that_nobody_reads_any_more_does_not_change_the_exit_code() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    script = "from remote.__main__ import end\nprint('unread')\nend(3)\n"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    argv = [sys.executable, "-c", script]
    process = subprocess.run(argv, stdout=writing, cwd=ROOT, env=buffered, check=False, timeout=60)
    os.close(writing)
    assert process.returncode == 3
