"""The practice fleet's inventory is an ordinary inventory, and its modes explain their differences."""

from __future__ import annotations

from pathlib import Path

from hosts.inventory.load import load_inventory
from hosts.inventory.modes import diff_modes
from hosts.practice.inventory import HostFacts, write_inventory
from hosts.practice.paths import PracticePaths


def test_every_difference_between_the_practice_modes_has_a_reason(tmp_path: Path) -> None:
    facts = HostFacts("practice1", 4022, 8000, tmp_path / "key", tmp_path / "dumps")
    path = write_inventory(PracticePaths(tmp_path), [facts], tmp_path / "model")
    assert "&id" not in path.read_text()
    differences = diff_modes(load_inventory(path).hosts["practice1"], "serve", "extract")
    assert {difference.setting for difference in differences} >= {"capture", "--disable-radix-cache"}
    assert all(difference.why for difference in differences)
