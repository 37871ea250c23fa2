"""`inv history` over a real sshd: from two laptops, with a killed command and a trail that cannot be written."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.fleet.conftest import SshHost, write_inventory

pytestmark = [pytest.mark.ssh]


class Laptop:
    """A folder with an inventory of the one host."""

    def __init__(self, folder: Path, clone: Path, host: SshHost) -> None:
        folder.mkdir()
        self.inventory = write_inventory(folder, host, "~/trail")
        self.trail = folder / ".roost" / "trail.jsonl"
        self._inv, self._clone = clone / ".venv/bin/inv", clone

    def start(self, *words: str) -> subprocess.Popen[str]:
        typed = [str(self._inv), *words, "--host", "box", "--inventory", str(self.inventory)]
        return subprocess.Popen(typed, cwd=self._clone, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def inv(self, *words: str) -> tuple[int, str, str]:
        running = self.start(*words)
        out, err = running.communicate(timeout=120)
        return running.returncode, out, err

    def history(self) -> list[dict[str, object]]:
        code, out, err = self.inv("history", "--json")
        assert code == 0, err
        found: list[dict[str, object]] = json.loads(out)["commands"]
        return found


@pytest.fixture
def laptops(private_sshd: SshHost, tmp_path: Path, clone: Path) -> tuple[Laptop, Laptop]:
    (private_sshd.sshd.home / "trail" / "trail.jsonl").unlink(missing_ok=True)
    return Laptop(tmp_path / "ana", clone, private_sshd), Laptop(tmp_path / "ben", clone, private_sshd)


def test_each_change_leaves_one_line_and_read_only_commands_leave_none(
    laptops: tuple[Laptop, Laptop], private_sshd: SshHost
) -> None:
    ana, ben = laptops
    assert ana.inv("stop")[0] == 0
    assert ana.inv("stop", "--dry-run")[0] == 0
    assert ana.inv("status")[0] == 0
    assert ana.inv("stop", "--grace", "-3")[0] == 2
    own, refused = ana.history()
    assert (refused["outcome"], refused["hosts"]) == ("refused", ["box"])
    assert (own["ending"], own["hosts"], own["origin"]) == ("ok", ["box"], "")
    assert str(own["words"]).startswith("stop --host box")
    assert ben.inv("clean", "--force")[0] == 0
    seen_by_ana, seen_by_ben = ana.history(), ben.history()
    changes = [done["words"] for done in seen_by_ana if done["ending"] == "ok"]
    assert changes == [done["words"] for done in seen_by_ben]
    assert [done["origin"] for done in seen_by_ana] == ["", "", private_sshd.host.address]
    assert [done["origin"] for done in seen_by_ben] == [private_sshd.host.address, ""]


def test_a_command_that_was_killed_is_shown_without_an_end(laptops: tuple[Laptop, Laptop]) -> None:
    ana, _ = laptops
    running = ana.start("clean", "--force")
    try:
        while not ana.trail.is_file() or not ana.trail.read_text():
            assert running.poll() is None, running.communicate()
    finally:
        running.send_signal(signal.SIGKILL)
        running.communicate(timeout=60)
    (done,) = ana.history()
    assert done["ending"] is None
    assert "was killed" in str(done["outcome"])


def test_an_unwritable_trail_is_reported_and_no_command_fails(
    laptops: tuple[Laptop, Laptop], private_sshd: SshHost
) -> None:
    ana, _ = laptops
    (private_sshd.sshd.home / "trail" / "trail.jsonl").mkdir(parents=True)
    ana.trail.mkdir(parents=True)
    try:
        code, _, err = ana.inv("stop")
        assert code == 0
        assert "trail of who did what could not be written" in err
        code, _, err = ana.inv("history")
        assert code == 1
        assert "trail.jsonl" in err
        assert "Traceback" not in err
    finally:
        (private_sshd.sshd.home / "trail" / "trail.jsonl").rmdir()
