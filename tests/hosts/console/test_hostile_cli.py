"""The command line against an attacker's host: one sentence, exit code 1, no escape sequence, no file written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """#!{python}
import json, sys
nonce = sys.stdin.buffer.readline().split()[0].decode()
print(json.dumps({{"type": "hello", "nonce": nonce, "python": "3.12", "have_payload": True}}), flush=True)
sys.stdin.buffer.readline()
with open({answer!r}, "rb") as answer:
    sys.stdout.buffer.write(answer.read())
"""
ESCAPED = "\x1b]0;owned\x07\x1b[2J"


def error(message: str) -> bytes:
    return json.dumps({"type": "error", "kind": "../../x", "message": message}).encode() + b"\n"


@pytest.mark.parametrize(
    ("task", "answer", "said"),
    [
        ("status", error(ESCAPED), "\\x1b]0;owned\\x07"),
        ("status", b'{"type": "result", "value": {"run": 5}}\n', "The host's answer does not fit the request"),
        ("doctor", b'{"type": "item", "value": ' + b"[" * 100_000 + b"\n", "is not in Roost's protocol"),
        ("logs", b'{"type": "item", "value": {"type": "lines"}}\n', "The host's answer does not fit the request"),
        ("attached", b"\x00\xff" * 1000 + b"\n", "is not in Roost's protocol"),
    ],
    ids=["escapes", "wrong types", "nested", "items", "bytes"],
)
def test_a_hostile_host_gives_one_sentence(tmp_path: Path, task: str, answer: bytes, said: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "answer").write_bytes(answer)
    program = tmp_path / "python"
    program.write_text(PROGRAM.format(python=sys.executable, answer=str(tmp_path / "answer")))
    program.chmod(0o755)
    inventory = home / "inventory.yaml"
    settings = {"connection": "local", "python": str(program), "workdir": str(tmp_path / "w")}
    inventory.write_text(json.dumps({"hosts": {"gpu1": settings}}))
    command = [sys.executable, "-m", "invoke", task, "--hosts", "gpu1", "--inventory", str(inventory)]
    root = Path(__file__).parents[3]
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=root, capture_output=True, timeout=300, env=environment, check=False)
    shown = (done.stdout + done.stderr).decode()
    assert done.returncode == 1
    assert said in shown
    assert "Traceback" not in shown
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert [path.name for path in home.rglob("*")] == ["inventory.yaml"]
    assert not (tmp_path / "w").exists()
