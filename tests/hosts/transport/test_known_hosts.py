"""known_hosts is read as OpenSSH reads it, and no content causes a traceback."""

from __future__ import annotations

import base64
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.transport.known_hosts import hashed, names_of, read
from tests.hostile import examples


def key_blob(kind: str = "ssh-ed25519", fill: int = 7) -> bytes:
    body = bytes([fill]) * 32
    return struct.pack(">I", len(kind)) + kind.encode() + struct.pack(">I", len(body)) + body


def text(blob: bytes) -> str:
    return base64.b64encode(blob).decode()


OURS, OTHERS = key_blob(), key_blob(fill=9)
GOOD, OTHER = f"ssh-ed25519 {text(OURS)}", f"ssh-ed25519 {text(OTHERS)}"
NAMES = names_of("gpu7.corp.example", 2222)


def judged(tmp_path: Path, *lines: str, blob: bytes = OURS, names: list[str] = NAMES) -> str:
    path = tmp_path / "known_hosts"
    path.write_text("\n".join(lines))
    return read([path]).judge(names, blob).judgement


@pytest.mark.parametrize(
    ("line", "judgement"),
    [
        (f"[gpu7.corp.example]:2222 {GOOD}", "known"),
        (f"[GPU7.corp.example]:2222 {GOOD} a comment", "known"),
        (f"gpu7.corp.example {GOOD}", "known"),  # OpenSSH looks again without the port
        (f"gpu7.corp.example {OTHER}", "new"),  # and another key there says nothing
        (f"[*.corp.example]:2222,other {GOOD}", "known"),
        (f"[gpu?.corp.example]:* {GOOD}", "known"),
        (f"!*.corp.example,* {GOOD}", "known"),  # the port makes another name of it
        (f"![gpu7.corp.example]:2222,!gpu7.*,* {GOOD}", "new"),
        (f"[gpu7.corp.example]:2222 {OTHER}", "changed"),
        (f"[gpu7.corp.example]:2222 ssh-rsa {text(key_blob('ssh-rsa'))}", "changed"),
        (f"{hashed(NAMES[0], b'0' * 20)} {GOOD}", "known"),
        (f"{hashed('gpu8', b'0' * 20)} {GOOD}", "new"),
        (f"@cert-authority *.corp.example {OTHER}", "new"),
        (f"@revoked *.corp.example,[*.corp.example]:* {GOOD}", "revoked"),
        (f"@revoked * {OTHER}", "new"),
        (f"  \t[gpu7.corp.example]:2222\t{GOOD}\r", "known"),
        ("# a comment", "new"),
        ("", "new"),
    ],
)
def test_a_line_means_what_it_means_to_openssh(tmp_path: Path, line: str, judgement: str) -> None:
    assert judged(tmp_path, line) == judgement


def test_several_keys_and_several_files_count_together(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text(f"{NAMES[0]} ssh-rsa {text(key_blob('ssh-rsa'))}\n{NAMES[0]} {OTHER}\n")
    second.write_text(f"{NAMES[0]} {GOOD}\n")
    known = read([first, tmp_path / "missing", second])
    assert known.judge(NAMES, OURS).judgement == "known"
    assert known.kinds(NAMES) == ["ssh-rsa", "ssh-ed25519"]


def test_a_revoked_key_stays_revoked_wherever_it_is_known(tmp_path: Path) -> None:
    assert judged(tmp_path, f"{NAMES[0]} {GOOD}", f"@revoked * {GOOD}") == "revoked"


@pytest.mark.parametrize(
    "broken",
    [
        "@revoked * ssh-ed25519 AAAA!cut",
        f"@revoked * ssh-ed25519 {text(OURS)[:-8]}",
        "@revoked *",
        "@revoked",
        "@revoked |1|x|y z",
    ],
)
def test_a_revoked_line_that_cannot_be_read_makes_no_key_acceptable(tmp_path: Path, broken: str) -> None:
    assert judged(tmp_path, broken, f"{NAMES[0]} {GOOD}") == "revoked"


@pytest.mark.parametrize(
    "broken",
    [
        "github.com ssh-rsa AAAA!cut",
        f"gpu9 ssh-rsa {text(OURS)}",
        f"gpu9 ssh-ed25519 {text(OURS)[:40]}",
        "gpu9",
        f"@strange gpu9 {GOOD}",
        f"|1|damaged|hash {GOOD}",
        "\x00\x01\x02",
    ],
)
def test_a_broken_line_is_skipped_and_named(tmp_path: Path, broken: str) -> None:
    assert judged(tmp_path, f"{NAMES[0]} {OTHER} first", broken, f"{NAMES[0]} {GOOD}") == "known"
    unreadable = read([tmp_path / "known_hosts"]).unreadable
    assert [line.place for line in unreadable] == [f"{tmp_path / 'known_hosts'} line 2"]
    assert unreadable[0].problem


def test_a_certificate_authority_is_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text(f"@cert-authority *.lab {OTHER}\n@cert-authority *.corp.example {GOOD}\n")
    authority = read([tmp_path / "known_hosts"]).authority(NAMES)
    assert authority is not None
    assert authority.number == 2


def test_an_alias_is_the_only_name() -> None:
    assert names_of("10.0.0.7", 2222, "Gpu7") == ["gpu7"]
    assert names_of("10.0.0.7", 22) == ["10.0.0.7"]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["gpu7", "[gpu7]:2222", "[::1]:22022"])
def test_hashed_names_are_those_of_ssh_keygen(tmp_path: Path, name: str) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"{hashed(name, b'1' * 20)} {GOOD}\n")
    command = ["ssh-keygen", "-F", name, "-f", str(path)]
    assert GOOD in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@examples(150)
@given(
    st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([GOOD.encode(), b"@revoked", b"|1|", b"*"])), max_size=6)
)
def test_no_file_content_causes_a_traceback(tmp_path: Path, parts: list[bytes]) -> None:
    path = tmp_path / "known_hosts"
    path.write_bytes(b" ".join(parts))
    known = read([path])
    assert known.judge(NAMES, OURS).judgement in {"known", "changed", "revoked", "new"}
    assert known.authority(NAMES) is None or b"@cert-authority" in path.read_bytes()
