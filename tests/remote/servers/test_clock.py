"""A host's clock may be set while servers run, by NTP, by hand, after a suspended VM: they stay who they are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from remote.shared.messages.server import ProcessRef
from remote.shared.processes import find, is_reused, members, reference

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a process began after the boot")

MARK = "/nowhere#none"


@pytest.fixture
def ref() -> Iterator[ProcessRef]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield reference(process.pid)
    process.kill()
    process.wait()


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_server_is_found_again_after_the_clock_was_set(ref: ProcessRef, hours: int) -> None:
    before = ref.model_copy(update={"created_at": ref.created_at + hours * 3600})
    found = find(before)
    assert found is not None
    assert found.pid == ref.pid
    assert not is_reused(before)
    assert [process.pid for process in members(before, MARK)] == [ref.pid]


def test_a_later_process_with_the_same_pid_is_another(ref: ProcessRef) -> None:
    boot, ticks = ref.start.split()
    for start in (f"{boot} {int(ticks) - 1}", f"another {ticks}"):
        other = ref.model_copy(update={"start": start})
        assert find(other) is None
        assert is_reused(other)


def test_a_record_of_an_earlier_version_is_told_by_its_create_time(ref: ProcessRef) -> None:
    old = ref.model_copy(update={"start": ""})
    assert find(old) is not None
    assert find(old.model_copy(update={"created_at": ref.created_at - 5})) is None
