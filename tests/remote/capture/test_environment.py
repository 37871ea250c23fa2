"""Capture's settings pass unchanged through environment variables, and a wrong setting is named."""

import pytest

from remote.capture.environment import VARIABLES, environment, settings
from remote.shared.errors import UsageError
from remote.shared.messages.server import CaptureSpec


def test_a_spec_passes_the_environment_unchanged() -> None:
    spec = CaptureSpec(layers=[3, 31, 59], final="post", dump_dir="/dev/shm/x y", high_water_bytes=9, pinned_bytes=8)
    read = settings(environment(spec))
    assert read is not None
    assert (str(read.dump_dir), read.layers, read.final) == ("/dev/shm/x y", (3, 31, 59), "post")
    assert (read.high_water_bytes, read.pinned_bytes) == (9, 8)
    assert set(environment(spec)) <= set(VARIABLES)


def test_without_a_dump_directory_no_other_variable_is_read() -> None:
    assert settings({"SGLANG_HS_LAYERS": "nonsense"}) is None
    assert settings({"SGLANG_HS_DUMP_DIR": ""}) is None


def test_no_layers_means_only_the_final_slot() -> None:
    read = settings({"SGLANG_HS_DUMP_DIR": "/d"})
    assert read is not None
    assert read.layers == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SGLANG_HS_DUMP_DIR", "relative"),
        ("SGLANG_HS_LAYERS", "3,x"),
        ("SGLANG_HS_LAYERS", "3,3"),
        ("SGLANG_HS_LAYERS", "-1"),
        ("SGLANG_HS_LAYERS", "31,3"),
        ("SGLANG_HS_FINAL", "both"),
        ("SGLANG_HS_HIGH_WATER", "0"),
        ("SGLANG_HS_PINNED", "4G"),
        ("SGLANG_HS_WRITERS", "-1"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        settings({"SGLANG_HS_DUMP_DIR": "/d", name: value})
