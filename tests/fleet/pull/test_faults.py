"""Whatever is cut, killed or damaged: nothing wrong is ever delivered, and the next call brings what is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hosts.errors import HostError
from remote.shared.messages.transfer import Limits
from remote.shared.transfer import destination
from tests.fleet.conftest import SshHost
from tests.fleet.pull.conftest import MIB, RUN, SMALL, Site
from tests.fleet.pull.link import Link
from tests.senders import is_sender

pytestmark = pytest.mark.ssh

SLOW = ["--limit-rate", "20MB"]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def begin(site: Site, clone: Path, *options: str) -> subprocess.Popen[bytes]:
    """`inv pull` in a process of its own, as a person runs it; returns once bytes have landed."""
    command = [sys.executable, "-m", "invoke", "pull", "--hosts", "all", "--to", str(site.destination), "--run", RUN]
    process = subprocess.Popen(
        [*command, "--inventory", str(site.inventory), *options],
        cwd=clone, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    part = site.destination / "roost" / "parts" / "hs_0.safetensors.part"
    wait_until(lambda: process.poll() is not None or (part.exists() and part.stat().st_size > 9 * MIB))
    assert process.poll() is None
    return process


def senders() -> list[psutil.Process]:
    """Processes on this machine that are the far end of a pull of these tests."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if is_sender(process.info["cmdline"] or []):
            found.append(process)
    return found


def test_a_pull_after_a_killed_one_continues_inside_the_file(site: Site, clone: Path) -> None:
    site.give("one", {0: 60 * MIB})
    process = begin(site, clone, *SLOW)
    process.kill()
    process.wait()
    assert site.delivered() == {}
    wait_until(lambda: not senders())
    (outcome, _) = site.pull().outcomes
    tally = outcome.result
    assert tally.kept_bytes >= 8 * MIB
    assert tally.kept_bytes + tally.wire_bytes == 60 * MIB
    assert site.delivered() == site.records


def test_ctrl_c_ends_at_once_and_leaves_nothing_running_on_the_hosts(site: Site, clone: Path) -> None:
    site.give("one", {0: 60 * MIB})
    process = begin(site, clone, *SLOW)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    wait_until(lambda: not senders())
    assert site.delivered() == {}


def test_a_killed_sender_is_started_again_by_the_same_pull(site: Site) -> None:
    site.give("one", {0: 40 * MIB})
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(site.pull(limits=Limits(streams=2, bytes_per_second=20e6))))
    thread.start()
    part = site.destination / "roost" / "parts" / "hs_0.safetensors.part"
    wait_until(lambda: part.exists() and part.stat().st_size > 9 * MIB)
    far_ends = senders()
    assert far_ends
    for sender in far_ends:
        sender.kill()
    thread.join(120)
    assert done
    assert site.delivered() == site.records


def test_the_same_pull_reconnects_after_its_connection_was_cut(site: Site, private_sshd: SshHost) -> None:
    site.give("one", {0: 40 * MIB, 1: SMALL})
    with Link(private_sshd.port, cut_after_bytes=21 * MIB) as link:
        through(site, private_sshd, link)
        (outcome, _) = site.pull(limits=Limits(streams=1)).outcomes
    assert outcome.ok, outcome.error
    tally = outcome.result
    assert site.delivered() == site.records
    assert tally.wire_bytes < 60 * MIB


def through(site: Site, sshd: SshHost, link: Link) -> None:
    """Let host `one` be reached through the link."""
    known_hosts = site.root / "known_hosts"
    known_hosts.write_text(sshd.sshd.known_hosts_line(link.port) + sshd.sshd.known_hosts_line(sshd.port))
    site.change("one", ssh_port=link.port, known_hosts=str(known_hosts))


def test_several_streams_share_one_large_file(site: Site, private_sshd: SshHost) -> None:
    site.give("one", {0: 64 * MIB + 3})
    with Link(private_sshd.port, one_way_seconds=0.02) as link:
        through(site, private_sshd, link)
        (outcome, _) = site.pull().outcomes
    tally = outcome.result
    assert tally.streams > 1
    assert site.delivered() == site.records


def test_a_pull_that_does_not_fit_on_the_disk_is_refused_before_a_byte_is_sent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.give("one", {0: MIB})
    monkeypatch.setattr(destination.Destination, "free_bytes", lambda self: destination.SPARE_BYTES + MIB - 1)
    (outcome, _) = site.pull().outcomes
    assert outcome.error is not None
    assert "are to come" in str(outcome.error)
    assert list((site.destination / "roost" / "parts").iterdir()) == []


def test_a_disk_that_fills_up_stops_the_pull_and_the_next_pull_continues(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.give("one", dict.fromkeys(range(6), 5 * MIB))
    room = [10 << 30] * 4 + [0] * 100

    with monkeypatch.context() as patched:
        patched.setattr(destination.Destination, "free_bytes", lambda self: room.pop(0))
        (outcome, _) = site.pull(limits=Limits(streams=1)).outcomes
    assert outcome.error is not None
    assert "No space left on device" in str(outcome.error)
    before = site.delivered()
    assert 0 < len(before) < 6
    assert before.items() <= site.records.items()
    site.pull()
    assert site.delivered() == site.records


def test_a_second_pull_into_the_same_folder_is_refused(site: Site, clone: Path) -> None:
    site.give("one", {0: 60 * MIB})
    process = begin(site, clone, *SLOW)
    try:
        with pytest.raises(HostError, match="Another pull writes"):
            site.pull()
    finally:
        process.kill()
        process.wait()


def test_check_finds_and_repairs_a_delivered_file_that_changed_at_equal_size_and_time(site: Site) -> None:
    site.give("one", {0: 9 * MIB, 1: MIB})
    site.pull()
    shard = site.destination / "hidden_states" / "hs_0.safetensors"
    before = shard.stat()
    with shard.open("r+b") as stream:
        stream.seek(5 * MIB)
        stream.write(b"wrong")
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    (outcome, _) = site.pull(check=True).outcomes
    tally = outcome.result
    assert tally.wire_bytes == 4 * MIB
    assert site.delivered() == site.records


def test_a_record_that_the_same_host_made_again_replaces_the_old_one(site: Site) -> None:
    site.give("one", {0: MIB})
    site.pull()
    site.give("one", {0: MIB})
    site.pull()
    assert site.delivered() == site.records


def test_a_record_that_two_hosts_have_is_delivered_once(site: Site) -> None:
    site.give("one", {0: MIB})
    first = dict(site.records)
    site.pull()
    site.give("two", {0: MIB}, epoch=2)
    _, two = site.pull().outcomes
    assert two.result.present == 1
    assert site.delivered() == first


def test_a_following_pull_brings_records_that_are_finished_meanwhile_and_ends_with_the_extractor(site: Site) -> None:
    site.plan_sizes({1: MIB})
    site.give("one", {0: MIB})
    with site.extracting("one") as paths:
        done: list[object] = []
        thread = threading.Thread(target=lambda: done.append(site.pull(follow=True, free=True)))
        thread.start()
        wait_until((site.destination / "hidden_states" / "hs_0.safetensors").exists)
        site.give("one", {1: MIB})
        wait_until((site.destination / "hidden_states" / "hs_1.safetensors").exists)
        assert thread.is_alive()
    thread.join(60)
    assert done
    assert site.delivered() == site.records
    assert list(paths.shards.iterdir()) == []
