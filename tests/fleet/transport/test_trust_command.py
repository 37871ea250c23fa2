"""`inv trust` against a real sshd: its output, the added keys, and its exit code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context

from hosts.practice.sshd import PrivateSshd
from hosts.tasks import reach

pytestmark = pytest.mark.ssh


@dataclass
class Box:
    """Two inventory entries on one sshd whose key nobody knows yet."""

    inventory: Path
    known_hosts: Path
    fingerprint: str
    port: int

    def trust(self, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, str]:
        """Exit code, and all that was printed."""
        code = 0
        try:
            reach.trust(Context(), hosts="all", inventory=str(self.inventory), **options)
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return code, said.out + said.err

    def known(self) -> list[str]:
        return self.known_hosts.read_text().splitlines() if self.known_hosts.exists() else []


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    server = PrivateSshd(tmp_path / "etc", tmp_path / "home")
    ref, port = server.start()
    shown = subprocess.run(
        ["ssh-keygen", "-lf", f"{server.host_key}.pub"], capture_output=True, text=True, check=True
    ).stdout
    known_hosts = tmp_path / "known_hosts"
    (tmp_path / "inventory.yaml").write_text(
        f"defaults: {{address: 127.0.0.1, ssh_port: {port}, identity_file: {server.client_key},"
        f" known_hosts: {known_hosts}, ssh_config: {tmp_path / 'none'}, connect_timeout: 20, layers: [1]}}\n"
        "modes: {serve: {}}\nhosts: {a: {model: /nope}, b: {model: /nope}}\n"
    )
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    yield Box(tmp_path / "inventory.yaml", known_hosts, shown.split()[1], port)
    server.stop(ref)


def test_a_key_is_shown_and_without_an_answer_nothing_is_added(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = box.trust(capsys)
    assert code == 1
    assert box.fingerprint in said
    assert "NOT trusted yet" in said
    assert "✓" not in said
    assert box.known() == []


def test_a_named_fingerprint_is_added_once_and_is_known_from_then_on(
    box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = box.trust(capsys, fingerprint=box.fingerprint)
    assert code == 0, said
    assert [line.split()[0] for line in box.known()] == [f"[127.0.0.1]:{box.port}"]
    code, said = box.trust(capsys)
    assert (code, said.count("(known)")) == (0, 2)
    assert len(box.known()) == 1


def test_another_fingerprint_adds_nothing(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = box.trust(capsys, fingerprint="SHA256:" + "A" * 43)
    assert code == 1
    assert "NOT trusted yet" in said
    assert box.known() == []


def test_json_says_for_each_host_which_keys_are_trusted(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = box.trust(capsys, fingerprint=f"SHA256:{'A' * 43},{box.fingerprint}", json=True)
    assert code == 0
    hosts = json.loads(said)["hosts"]
    keys = [key for host in hosts.values() for key in host["value"]["keys"]]
    assert [key["fingerprint"] for key in keys] == [box.fingerprint] * 2
    assert all(key["known_before"] or key["added_to"] for key in keys)


@pytest.mark.parametrize("wrong", ["SHA256:short", "MD5:aa:bb", "aa:bb", "SHA256:" + "?" * 43])
def test_an_invalid_fingerprint_is_wrong_usage(box: Box, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    code, said = box.trust(capsys, fingerprint=wrong)
    assert code == 2
    assert "is not a fingerprint" in said
    assert box.known() == []


def test_yes_and_a_fingerprint_contradict_each_other(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = box.trust(capsys, yes=True, fingerprint=box.fingerprint)
    assert code == 2
    assert "Give only one of them" in said
