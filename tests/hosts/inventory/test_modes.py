"""What `inv diff-modes` says of the checked-in example: every difference, with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.errors import UsageError
from hosts.inventory.load import load_inventory
from hosts.inventory.modes import diff_modes

GPU1 = load_inventory(Path(__file__).parents[3] / "inventory.yaml").hosts["gpu1"]


def test_every_difference_between_the_example_modes_has_a_reason() -> None:
    differences = {difference.setting: difference for difference in diff_modes(GPU1, "serve", "extract")}
    assert (differences["capture"].first, differences["capture"].second) == ("-", "set")
    assert differences["--disable-radix-cache"].second == "set"
    assert differences["$SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"].second == "1"
    assert "--mem-fraction-static" not in differences
    assert all(difference.why for difference in differences.values())


def test_a_mode_does_not_differ_from_itself() -> None:
    assert diff_modes(GPU1, "extract", "extract") == []


def test_an_unknown_mode_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'extract'"):
        diff_modes(GPU1, "serve", "extrac")
