"""What the bootstrap costs every call: the modules that it imports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hosts.transport.backend import BOOTSTRAP
from hosts.transport.bootstrap import header
from hosts.transport.payload import current_payload


def imported(program: str, said: bytes = b"") -> set[str]:
    """Return the modules that a bare Python imports for `program`, which is to end with exit code 0."""
    argv = [sys.executable, "-I", "-S", "-X", "importtime", "-c", program]
    done = subprocess.run(argv, input=said, capture_output=True, check=True, timeout=60)
    return set(re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", done.stderr.decode(), re.MULTILINE))


def test_a_call_to_a_host_that_has_the_payload_imports_nothing_but_a_digest(tmp_path: Path) -> None:
    payload = current_payload()
    asked = header("nonce", payload.digest, "hello", str(tmp_path))
    program = BOOTSTRAP.replace("os.execv(", "sys.exit(0), (")
    packed = imported(program, asked + b"%d\n" % len(payload.archive) + payload.archive)
    assert "tarfile" in packed
    assert imported(program, asked) - imported("import os, stat, sys") <= {"_blake2"}


@pytest.mark.parametrize("workdir", ["", "~/a b", "/t/ü\n'\"\\"])
def test_a_workdir_of_any_characters_is_one_word_of_the_header(workdir: str) -> None:
    words = header("n", "d", "hello", workdir).decode("ascii").removesuffix("\n").split(" ")
    assert words[:3] == ["n", "d", "hello"]
    assert bytes.fromhex(words[3]).decode() == workdir
