"""States of an install: patched files, refused files that stay unchanged, and the block in a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from remote.attach import block, patch
from remote.shared.errors import HostError, UsageError
from tests.remote.attach.conftest import Install
from tests.remote.attach.installs import make_install


def refused(host: Install) -> HostError:
    """Attach, expect a refusal, and see that no file was touched."""
    before = {path: path.read_bytes() for path in host.model().parent.iterdir() if path.is_file()}
    with pytest.raises(HostError) as caught:
        host.attach()
    assert {path: path.read_bytes() for path in host.model().parent.iterdir() if path.is_file()} == before
    return caught.value


def diff(error: HostError) -> list[str]:
    lines = error.details["lines"]
    assert isinstance(lines, list)
    return lines


def test_only_the_families_asked_for_are_patched(host: Install) -> None:
    assert host.attach(["llama"]) == [str(host.model("llama"))]
    assert (host.state("llama"), host.state("deepseek")) == ("attached", "original")


def test_an_unknown_family_is_named_with_the_known_ones(host: Install) -> None:
    with pytest.raises(UsageError, match=r"no family 'gpt'.*deepseek, .*qwen3_moe"):
        host.attach(["gpt"])


def test_a_dry_run_says_what_would_change_and_changes_nothing(host: Install) -> None:
    before = host.model().read_bytes()
    assert len(host.attach(dry_run=True)) == 4
    assert host.model().read_bytes() == before
    host.attach()
    patched = host.model().read_bytes()
    assert len(host.detach(dry_run=True)) == 4
    assert host.model().read_bytes() == patched


def test_an_edited_file_is_refused_and_left_alone(host: Install) -> None:
    host.model().write_text(host.model().read_text() + "print('mine')\n")
    assert "is not what the wheel's RECORD says was installed" in refused(host).message
    assert host.state() == "unknown"


def test_an_edit_above_the_block_is_refused_with_its_diff(host: Install) -> None:
    host.attach()
    host.model().write_bytes(host.model().read_bytes().replace(b"EntryClass", b"EntryKlass", 1))
    error = refused(host)
    assert {"-EntryClass = []", "+EntryKlass = []"} <= set(diff(error))
    with pytest.raises(HostError, match="was edited after Roost's block went in"):
        host.detach()


def test_lines_behind_the_block_are_refused_with_their_diff(host: Install) -> None:
    host.attach()
    host.model().write_bytes(host.model().read_bytes() + b"other_tool = 1\n")
    assert "+other_tool = 1" in diff(refused(host))


def test_a_torn_block_is_refused(host: Install) -> None:
    host.attach()
    host.model().write_bytes(host.model().read_bytes()[:-20])
    assert "was edited" in refused(host).message


def test_if_one_file_is_refused_no_file_is_patched(host: Install) -> None:
    host.model("qwen3").write_text("EntryClass = 'mine'\n")
    refused(host)
    assert host.state("deepseek") == "original"


def test_an_earlier_payloads_block_is_replaced(host: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    original = host.model().read_bytes()
    with monkeypatch.context() as earlier:
        earlier.setattr(block, "_BODY", b"_roost_block = 0\n")
        host.attach()
    assert host.state() == "outdated"
    assert str(host.model()) in host.attach()
    assert host.state() == "attached"
    host.detach()
    assert host.model().read_bytes() == original


def test_an_earlier_payloads_block_can_be_taken_out(host: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    original = host.model().read_bytes()
    with monkeypatch.context() as earlier:
        earlier.setattr(block, "_BODY", b"_roost_block = 0\n")
        host.attach()
    host.detach()
    assert host.model().read_bytes() == original


def test_an_upgrade_by_pip_leaves_no_stale_copy_behind(host: Install) -> None:
    host.attach()
    make_install(host.site, "0.5.10.post1")
    assert host.state() == "original"
    host.detach()
    assert not list(host.model().parent.glob("*.roost-original"))


@pytest.mark.parametrize("version", ["0.5.8", "0.5.24", "0.6.0", "0.0.0.dev0", "nonsense"])
def test_an_untried_version_is_refused(version: str, tmp_path: Path) -> None:
    host = Install(make_install(tmp_path / "site", version))
    assert f"SGLang {version} at" in refused(host).message


def test_a_file_that_is_a_link_is_refused(host: Install, tmp_path: Path) -> None:
    shared = tmp_path / "cache.py"
    host.model().rename(shared)
    host.model().symlink_to(shared)
    assert "is a link to" in refused(host).message


def test_mode_and_owner_stay(host: Install) -> None:
    host.model().chmod(0o640)
    host.attach()
    assert host.model().stat().st_mode & 0o777 == 0o640
    host.detach()
    assert host.model().stat().st_mode & 0o777 == 0o640


def test_a_hard_linked_cache_is_not_reached(host: Install, tmp_path: Path) -> None:
    cache = tmp_path / "cached.py"
    os.link(host.model(), cache)
    before = cache.read_bytes()
    host.attach()
    assert cache.read_bytes() == before


def test_a_read_only_install_is_one_sentence(host: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so what the kernel would answer to another user is put in its mouth."""
    real = os.access

    def read_only(path: str | Path, mode: int) -> bool:
        return False if mode == os.W_OK and Path(path) == host.model().parent else real(path, mode)

    monkeypatch.setattr(os, "access", read_only)
    assert "This user cannot write to" in refused(host).message


def test_a_write_that_fails_is_one_sentence_and_leaves_the_file(host: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(patch, "written_aside", full)
    assert "No space left on device" in refused(host).message


def test_a_git_checkout_is_patched_over_its_head_and_refused_when_dirty(host: Install) -> None:
    for path in host.site.glob("*.dist-info/*"):
        path.unlink()
    git = ["git", "-C", str(host.site), "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for arguments in (["init", "-q"], ["add", "sglang"], ["commit", "-q", "-m", "as cloned"]):
        subprocess.run([*git, *arguments], check=True)
    host.attach()
    assert host.state() == "attached"
    host.detach()
    assert not subprocess.run([*git, "status", "--porcelain", "sglang"], check=True, capture_output=True).stdout
    host.model().write_text("EntryClass = 'dirty'\n")
    assert "+EntryClass = 'dirty'" in diff(refused(host))


def test_a_file_of_unknown_origin_is_refused(host: Install) -> None:
    for path in host.site.glob("*.dist-info/RECORD"):
        path.unlink()
    assert "its original is unknown" in refused(host).message


def test_stale_bytecode_never_runs(host: Install) -> None:
    """Bytecode that claims to be unchecked would run for ever, whatever the source says."""
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*compiled, str(host.model())], check=True)
    host.attach()
    assert imported(host, {}) == "block"
    subprocess.run([*compiled, str(host.model())], check=True)
    host.detach()
    assert imported(host, {}) == "no block"


def imported(host: Install, env: dict[str, str], *path: Path) -> str:
    """Import the model module in a process of its own and say what came of it."""
    program = (
        "import sys, sglang.srt.models.deepseek_v2 as m;"
        "print('block' if hasattr(m, '_roost_block') else 'no block', *sorted(k for k in sys.modules if 'remote' in k))"
    )
    search = os.pathsep.join(map(str, [host.site, *path]))
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": search, **env},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip() + (f" | {run.stderr.strip().splitlines()[-1]}" if run.stderr else "")


def test_the_block_is_dormant_without_a_dump_directory(host: Install, hook: Path) -> None:
    host.attach()
    assert imported(host, {}, hook) == "block"


def test_the_block_hands_its_module_to_the_capture_that_is_on_the_path(
    host: Install, hook: Path, tmp_path: Path
) -> None:
    host.attach()
    seen = tmp_path / "seen"
    imported(host, {"SGLANG_HS_DUMP_DIR": "/dump", "SEEN": str(seen)}, hook)
    assert seen.read_text() == "sglang.srt.models.deepseek_v2 EntryClass"


def test_a_server_without_roost_on_its_path_goes_on(host: Install) -> None:
    host.attach()
    said = imported(host, {"SGLANG_HS_DUMP_DIR": "/dump"})
    assert said.startswith("block |")
    assert "No module named 'remote'" in said


def test_a_capture_that_fails_to_install_does_not_take_the_server_down(host: Install, hook: Path) -> None:
    host.attach()
    said = imported(host, {"SGLANG_HS_DUMP_DIR": "/dump", "FAIL": "1"}, hook)
    assert "RuntimeError: planted" in said


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    """A stand-in for the capture package that notes whom it was called for."""
    folder = tmp_path / "payload" / "remote" / "capture"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("")
    (folder / "hook.py").write_text(
        "import os, sys\n"
        "def install_in(name):\n"
        "    if os.environ.get('FAIL'):\n"
        "        raise RuntimeError('planted')\n"
        "    classes = ' '.join(k for k in vars(sys.modules[name]) if k == 'EntryClass')\n"
        "    open(os.environ['SEEN'], 'w').write(f'{name} {classes}')\n"
    )
    return tmp_path / "payload"
