"""Comparisons of constructed results: faster, slower or noise, and other differences."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from hosts.bench.compare import compare, differences, pool
from hosts.bench.results import BenchResults
from hosts.errors import UsageError
from remote.shared.messages.bench import BenchRequest, Measurement
from remote.shared.messages.tune import Sample
from tests.measurements import measured


@pytest.mark.parametrize(
    ("first", "second", "better", "verdict"),
    [
        ([63.5, 63.6, 63.7, 63.6], [89.9, 90.0, 90.1, 90.2], "higher", "faster"),
        ([90.0, 90.1, 89.9, 90.0], [63.6, 63.5, 63.7, 63.6], "higher", "slower"),
        ([90.0, 90.1, 89.9, 90.0], [63.6, 63.5, 63.7, 63.6], "lower", "faster"),
        ([60.0, 66.0, 63.0, 61.0], [62.0, 65.0, 60.0, 64.0], "higher", "noise"),
        ([100.0] * 4, [100.5] * 4, "higher", "noise"),
        ([63.6, 63.5, 63.7], [90.0, 90.1, 89.9], "higher", "noise"),
    ],
)
def test_a_difference_counts_when_its_interval_excludes_one(
    first: list[float], second: list[float], better: str, verdict: str
) -> None:
    (row,) = compare(measured(first, better), measured(second, better))
    assert row.verdict == verdict
    assert row.low <= row.ratio <= row.high


def test_each_result_adds_its_median_to_the_pool() -> None:
    pooled = pool([measured([1.0, 2.0, 9.0], disturbed=["GPU 0 was slowed down."]), measured([4.0, 4.0, 5.0])])
    assert [each.values for each in pooled.measurements] == [[2.0, 4.0]]
    assert pooled.disturbed == ["GPU 0 was slowed down."]
    assert pool([measured([1.0, 2.0])]) == measured([1.0, 2.0])


def test_a_quantity_that_only_one_result_has_is_left_out() -> None:
    other = measured([1.0], measurements=[Measurement(name="ttft", unit="ms", better="lower", values=[1.0])])
    assert compare(measured([1.0]), other) == []


def test_other_differences_are_named() -> None:
    first = measured(
        [1.0],
        command=["python", "--port=8000", "--tp-size", "8", "--cuda-graph-bs", "1", "2", "--same=1"],
        disturbed=["GPU 0 was slowed down."],
    )
    second = measured(
        [1.0],
        capture="dormant",
        driver="580.65.06",
        env={"NCCL_PROTO": "LL"},
        command=["python", "--port=8001", "--tp-size=4", "--cuda-graph-bs", "1", "--x", "--same", "1"],
        request=BenchRequest(prompt_tokens=512),
    )
    assert differences(first, second) == [
        "driver: - against 580.65.06",
        "capture: none against dormant",
        "prompt tokens: 256 against 512",
        "$NCCL_PROTO: - against LL",
        "--tp-size: 8 against 4",
        "--cuda-graph-bs: 1 2 against 1",
        "--x: - against set",
        "disturbed: GPU 0 was slowed down.",
    ]
    assert differences(second, second) == []


def test_results_are_kept_under_their_label_and_never_overwritten(tmp_path: Path) -> None:
    kept = BenchResults(tmp_path)
    assert kept.save(measured([1.0], label="baseline")) == "gpu1/baseline"
    assert kept.save(measured([2.0], label="baseline")) == "gpu1/baseline-2"
    assert kept.load("baseline").measurements[0].values == [1.0]
    assert kept.load("gpu1/baseline-2").measurements[0].values == [2.0]


def test_a_pattern_stands_for_every_result_that_it_matches(tmp_path: Path) -> None:
    kept = BenchResults(tmp_path)
    for number in range(3):
        kept.save(measured([float(1 + number)], label="before"))
    kept.save(measured([9.0], label="after"))
    found = kept.load_all("gpu1/before*")
    assert sorted(each.measurements[0].values[0] for each in found) == [1.0, 2.0, 3.0]
    assert len(kept.load_all("after")) == 1
    with pytest.raises(UsageError, match=r"There is no result 'gpu1/nothing\*'"):
        kept.load_all("gpu1/nothing*")


def test_an_unknown_result_is_refused_with_the_known_results(tmp_path: Path) -> None:
    kept = BenchResults(tmp_path)
    kept.save(measured([1.0], label="baseline"))
    with pytest.raises(UsageError, match="Kept results: gpu1/baseline"):
        kept.load("dormant")
    with pytest.raises(UsageError, match=r"label '\.\./x' cannot be used"):
        kept.save(measured([1.0], label="../x"))


@pytest.mark.parametrize("values", [[], [0.0], [-1.0], [float("nan")], [1.0, float("inf")]])
def test_impossible_measurements_are_refused(values: list[float]) -> None:
    with pytest.raises(ValidationError, match="each a number above 0"):
        Measurement(name="decode", unit="tokens/s", better="higher", values=values)
    with pytest.raises(ValidationError, match="each a number above 0"):
        Sample(operation="all_reduce", size_bytes=1, microseconds=values)
