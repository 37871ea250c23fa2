"""The machine's facts, from files made for the purpose and from this very machine."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from remote.facts.machine import limit_facts, machine_facts, space_facts, sshd_settings


def test_the_first_value_counts_and_included_files_stand_where_they_are_included(tmp_path: Path) -> None:
    (tmp_path / "sshd_config.d").mkdir()
    (tmp_path / "sshd_config.d" / "20-second.conf").write_text("MaxStartups 99\nMaxSessions 3\n")
    (tmp_path / "sshd_config.d" / "10-first.conf").write_text("maxstartups=4:30:60\n")
    config = tmp_path / "sshd_config"
    config.write_text(
        "# MaxStartups 1\nInclude sshd_config.d/*.conf\nMaxStartups 50\n\nMatch User ann\n  MaxSessions 1\n"
    )
    found = limit_facts(config)
    assert (found.max_startups, found.max_sessions) == ("4:30:60", 3)


def test_a_silent_configuration_has_sshd_s_defaults_and_an_unreadable_one_none(tmp_path: Path) -> None:
    config = tmp_path / "sshd_config"
    config.write_text("PermitRootLogin no\n")
    assert (limit_facts(config).max_startups, limit_facts(config).max_sessions) == ("10:30:100", 10)
    assert sshd_settings(tmp_path / "absent") is None
    assert (limit_facts(tmp_path / "absent").max_startups, limit_facts(tmp_path / "absent").max_sessions) == ("", None)


def test_limits_are_this_process_s_own() -> None:
    assert limit_facts().open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_a_folder_that_does_not_exist_yet_is_judged_by_where_it_would_be(tmp_path: Path) -> None:
    found = space_facts(tmp_path / "not" / "yet")
    assert found.path == str(tmp_path)
    assert 0 < found.free_bytes <= found.total_bytes
    assert found.writable


def test_files_in_the_folder_are_counted(tmp_path: Path) -> None:
    (tmp_path / "server0").mkdir()
    (tmp_path / "server0" / "dump").write_bytes(b"x" * 1000)
    assert space_facts(tmp_path).own_bytes == 1000


def test_the_ram_disk_is_recognised_as_one() -> None:
    assert space_facts(Path("/dev/shm/roost-not-there")).kind == "tmpfs"


def test_the_facts_name_the_user_and_the_time() -> None:
    found = machine_facts()
    assert found.root == (os.geteuid() == 0)
    assert found.memory_available_bytes <= found.memory_bytes
    assert found.cores >= 1
