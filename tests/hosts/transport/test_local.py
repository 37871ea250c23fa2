"""A verb over a subprocess: the whole exchange, without SSH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hosts.errors import ConnectionLostError, HostError, ProtocolError, PythonError, UsageError
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from hosts.transport.bootstrap import place, tree_digest
from hosts.transport.local import LocalBackend
from hosts.transport.payload import SOURCE, Payload, current_payload
from hosts.transport.words import python_program
from remote.shared.messages.hello import HelloRequest, HelloResult


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return tmp_path / 'a\'; echo foo $HOME "x"' / "work dir"


@pytest.fixture
def backend(workdir: Path) -> Backend:
    return LocalBackend(Host(name="here", connection="local", python=sys.executable, workdir=str(workdir)))


def hello(backend: Backend) -> HelloResult:
    return backend.call("hello", HelloRequest(), HelloResult, deadline=30)


def test_the_first_call_places_the_payload_and_the_next_one_sends_nothing(backend: Backend, workdir: Path) -> None:
    assert hello(backend).payload == current_payload().digest
    placed = workdir / "payloads" / current_payload().digest
    before = placed.stat()
    assert hello(backend).payload == placed.name
    assert placed.stat().st_ino == before.st_ino
    assert (workdir / "payloads" / "current").resolve() == placed
    assert placed.stat().st_mode & 0o077 == 0


def test_a_damaged_payload_is_set_aside_and_placed_again(backend: Backend, workdir: Path) -> None:
    hello(backend)
    victim = workdir / "payloads" / current_payload().digest / "remote" / "shared" / "errors.py"
    victim.write_text("raise SystemExit('damaged')")
    assert hello(backend).payload == current_payload().digest
    assert "damaged" not in victim.read_text()


def test_a_verb_that_does_not_exist_is_a_usage_error(backend: Backend) -> None:
    with pytest.raises(UsageError, match="no verb 'nonsense'"):
        backend.call("nonsense", HelloRequest(), HelloResult, deadline=30)


def test_a_missing_python_is_one_sentence(workdir: Path) -> None:
    backend = LocalBackend(Host(name="here", connection="local", python="/no/such/python", workdir=str(workdir)))
    with pytest.raises(PythonError, match="/no/such/python could not be started"):
        hello(backend)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_workdir_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    backend = LocalBackend(Host(name="h", connection="local", python=sys.executable, workdir=str(locked / "w")))
    with pytest.raises(HostError, match="could not be placed"):
        hello(backend)


def test_a_workdir_below_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    workdir = tmp_path / "file" / "work"
    backend = LocalBackend(Host(name="h", connection="local", python=sys.executable, workdir=str(workdir)))
    with pytest.raises(HostError, match="could not be placed"):
        hello(backend)


def test_a_module_beside_the_payload_is_set_aside_with_it(backend: Backend, workdir: Path) -> None:
    hello(backend)
    placed = workdir / "payloads" / current_payload().digest
    (placed / "psutil.py").write_text("raise SystemExit('planted')")
    assert hello(backend).payload == placed.name
    assert not (placed / "psutil.py").exists()


@pytest.mark.parametrize(
    "names", [("tarfile.py", "json.py", "hashlib.py", "zlib.py"), ("pydantic/__init__.py", "signal.py")]
)
@pytest.mark.parametrize("path", ["", ":"], ids=["no PYTHONPATH", "an empty entry in PYTHONPATH"])
def test_nothing_is_imported_from_the_folder_that_the_login_starts_in(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], path: str
) -> None:
    folder = tmp_path / "downloads"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(folder)
    if path:
        monkeypatch.setenv("PYTHONPATH", path)
    assert hello(backend).version
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("options", [(), ("-I", "-S")])
def test_a_sender_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('from the current folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    argv = python_program(Host(name="h", python=sys.executable), "import json; print(json.__name__)", *options)
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "json\n"


def test_a_host_s_own_isolation_does_not_keep_the_payload_off_the_path(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert hello(backend).version


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_workdir_below_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    if mode == 0o775:
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder to a strange group")
        os.chown(shared, 0, 12_345)
    backend = LocalBackend(Host(name="h", connection="local", python=sys.executable, workdir=str(shared / "w")))
    with pytest.raises(HostError, match=f"{shared} can be written to by other users"):
        hello(backend)
    assert not (shared / "w").exists()
    shared.chmod(0o1777)
    assert hello(backend).version


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
@pytest.mark.parametrize("planted", ["roost", "roost/payloads", "payload"])
def test_a_workdir_that_another_user_made_first_is_refused(tmp_path: Path, planted: str) -> None:
    scratch = tmp_path / "scratch"
    payload = scratch / "roost" / "payloads" / current_payload().digest
    shutil.copytree(SOURCE, payload / "remote")
    (payload / "psutil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    scratch.chmod(0o1777)
    theirs = payload if planted == "payload" else scratch / planted
    os.chown(theirs, 54_321, 54_321)
    backend = LocalBackend(Host(name="h", connection="local", python=sys.executable, workdir=str(scratch / "roost")))
    with pytest.raises(HostError, match=f"{theirs} belongs to another user"):
        hello(backend)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
def test_a_file_of_another_user_in_the_payload_is_damage(backend: Backend, workdir: Path) -> None:
    hello(backend)
    remote = workdir / "payloads" / current_payload().digest / "remote"
    cached = remote / "__pycache__" / "errors.cpython-311.pyc"
    cached.parent.mkdir(exist_ok=True)
    cached.touch()
    os.chown(cached, 54_321, 54_321)
    assert hello(backend).version
    assert not cached.exists()


def fake_python(tmp_path: Path, script: str) -> Backend:
    """A host whose `python` is a shell script: what a broken or hostile host could answer."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return LocalBackend(Host(name="h", connection="local", python=str(path), workdir=str(tmp_path / "w")))


@pytest.mark.parametrize("noise", ['echo "welcome {"', """echo '{"type":"beat"}'""", "printf 'no end of line'"])
def test_noise_before_the_hello_is_ignored(tmp_path: Path, noise: str) -> None:
    backend = fake_python(tmp_path, f'{noise}; exec {sys.executable} "$@"')
    assert hello(backend).payload == current_payload().digest


def test_a_python_that_is_too_old_says_so(tmp_path: Path) -> None:
    script = f"""shift 3
code=$(printf 'import sys; sys.version_info = (3, 8, 1)\\n%s' "$1")
exec {sys.executable} -c "$code" """
    backend = fake_python(tmp_path, script)
    with pytest.raises(HostError, match=r"Python 3\.8\.1 .* is too old"):
        hello(backend)


def test_a_program_that_ends_at_once_gives_its_last_words_with_escapes_shown(tmp_path: Path) -> None:
    backend = fake_python(tmp_path, "printf 'bad \\033[31mnews' >&2; exit 3")
    with pytest.raises(
        ProtocolError, match=r"status 3 before Python started on the host; the session printed: bad \\x1b\[31mnews"
    ):
        hello(backend)


def test_endless_noise_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="over 1 MiB"):
        hello(fake_python(tmp_path, "yes noise"))


def test_an_endless_line_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="a line of over"):
        hello(fake_python(tmp_path, "tr '\\0' x < /dev/zero"))


def test_a_host_that_never_answers_ends_at_the_deadline(tmp_path: Path) -> None:
    backend = fake_python(tmp_path, "exec sleep 60")
    with pytest.raises(ConnectionLostError, match="The host sent no result within"):
        backend.call("hello", HelloRequest(), HelloResult, deadline=0.5)


def test_a_python_without_the_engine_s_packages_is_one_sentence_with_its_remedy(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    bare = Host(name="here", connection="local", python=str(tmp_path / "bare/bin/python"), workdir=str(tmp_path / "w"))
    with pytest.raises(HostError, match=r"^The host's Python has no module 'pydantic'\.") as caught:
        hello(LocalBackend(bare))
    assert "`python`" in caught.value.remedy


def test_the_payload_is_packed_once_however_many_hosts_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[None] = []
    pack = Payload._packed

    def counted(payload: Payload) -> bytes:
        packed.append(None)
        return pack(payload)

    monkeypatch.setattr(Payload, "_packed", counted)
    payload = Payload(SOURCE)
    assert not packed
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(lambda _: payload.archive, range(16)))) == 1
    assert len(packed) == 1


def test_hosts_that_share_a_home_place_the_payload_at_once(tmp_path: Path) -> None:
    """Their process ids may be alike, as those of two containers are."""
    payload = current_payload()
    together = threading.Barrier(4)

    def place_together() -> None:
        together.wait()
        place(str(tmp_path), payload.digest, payload.archive)

    with ThreadPoolExecutor(4) as pool:
        for placing in [pool.submit(place_together) for _ in range(4)]:
            placing.result()
    assert tree_digest(str(tmp_path / "current" / "remote")) == payload.digest
    assert {path.name for path in tmp_path.iterdir()} == {"current", payload.digest}
