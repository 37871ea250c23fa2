"""What `inv diff-modes` says of the checked-in example: every difference, with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.errors import UsageError
from hosts.inventory.load import load_inventory
from hosts.inventory.modes import diff_modes
from hosts.inventory.servers import server_specs

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


def test_a_persons_own_mode_is_as_complete_as_the_others(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(
        "defaults: {model: /m, layers: [1]}\n"
        "nccl: {NCCL_PROTO: LL}\n"
        "modes:\n"
        "  serve: {flags: {mem-fraction-static: 0.88}}\n"
        "  extract: {capture: true, flags: {disable-radix-cache: true}}\n"
        "  eagle: {flags: {speculative-algorithm: EAGLE3}, env: {SGLANG_X: 1}, why: {SGLANG_X: a trial}}\n"
        "hosts: {gpu1: {}, gpu2: {modes: {eagle: {flags: {speculative-num-steps: 3}}}}}\n"
    )
    hosts = load_inventory(path).hosts
    (spec,) = server_specs(hosts["gpu1"], "eagle")
    assert (spec.mode, spec.capture, spec.flags) == ("eagle", None, ["--speculative-algorithm", "EAGLE3"])
    assert spec.env == {"NCCL_PROTO": "LL", "SGLANG_X": "1"}
    assert [
        (each.setting, each.first, each.second, each.why) for each in diff_modes(hosts["gpu1"], "serve", "eagle")
    ] == [
        ("--mem-fraction-static", "0.88", "-", ""),
        ("--speculative-algorithm", "-", "EAGLE3", ""),
        ("$SGLANG_X", "-", "1", "a trial"),
    ]
    (spec,) = server_specs(hosts["gpu2"], "eagle")
    assert spec.flags == ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"]


def test_an_unknown_mode_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'extract'"):
        diff_modes(GPU1, "serve", "extrac")
