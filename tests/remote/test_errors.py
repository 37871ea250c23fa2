"""An error of a disk is one sentence, anywhere on a host."""

from __future__ import annotations

import errno
import os

import pytest

from remote.shared.errors import UsageError
from remote.verbs.run import _failure


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_an_error_of_the_disk_names_the_file_and_a_remedy(number: int) -> None:
    told = _failure(OSError(number, os.strerror(number), "/data/run/states"))
    assert told.kind == "host"
    assert told.message == f"/data/run/states could not be written: {os.strerror(number)}."
    assert told.remedy
    assert not told.details


def test_any_other_error_keeps_its_traceback_for_a_report() -> None:
    try:
        raise FileNotFoundError(errno.ENOENT, "gone", "/data")
    except OSError as error:
        told = _failure(error)
    assert told.kind == "internal"
    assert "Traceback" in str(told.details)
    assert _failure(UsageError("No.", remedy="Yes.")).remedy == "Yes."
