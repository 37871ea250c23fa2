"""Compares two results: faster, slower or noise, with the interval of their ratio. Pure."""

from __future__ import annotations

import random
import statistics
from typing import Literal

from pydantic import BaseModel

from remote.shared.messages.bench import BenchResult, Measurement

RESAMPLES = 4000
CONFIDENCE = 0.95
SEED = 20
FEWEST_VALUES = 4
"""With three values a side, the interval of two equal servers excludes 1 in 12 % of comparisons; with five, in 3 %."""
SMALLEST_DIFFERENCE = 0.01
"""A ratio within 1 % of 1 counts as noise, even if its interval excludes 1: nobody would act on it."""

SAID_ELSEWHERE = ("--model-path", "--port")
"""Flags that are left out here, because `differences` names the host and the model itself."""

Verdict = Literal["faster", "slower", "noise"]


class Comparison(BaseModel):
    """One quantity of B against A."""

    name: str
    unit: str
    first: float
    """Median in A."""
    second: float
    ratio: float
    """B's median over A's."""
    low: float
    high: float
    """The ratio's 95 % interval, by bootstrap over the repetitions."""
    values: int
    """Number of values on the side that has fewer."""
    verdict: Verdict
    """B against A; `noise` if the interval contains 1, the difference is below 1 %, or a side has too few values."""


def compare(first: BenchResult, second: BenchResult) -> list[Comparison]:
    """Compare the quantities that both results have, in A's order."""
    others = {measurement.name: measurement for measurement in second.measurements}
    return [_compare(one, others[one.name]) for one in first.measurements if one.name in others]


def pool(results: list[BenchResult]) -> BenchResult:
    """Return several measurements of the same thing as one result, each measurement's median as one value.

    Repetitions under one start of a server share that start's conditions, so only whole measurements are independent.
    """
    if len(results) == 1:
        return results[0]
    by_name = [{each.name: each.values for each in result.measurements} for result in results]
    pooled = [
        each.model_copy(update={"values": [statistics.median(values[each.name]) for values in by_name]})
        for each in results[0].measurements
        if all(each.name in values for values in by_name)
    ]
    disturbed = [line for result in results for line in result.disturbed]
    return results[0].model_copy(update={"measurements": pooled, "disturbed": disturbed})


def differences(first: BenchResult, second: BenchResult) -> list[str]:
    """Return a phrase for each circumstance (host, model, flags, …) that differs between the results."""
    named = {
        "host": (first.host, second.host),
        "mode": (first.mode, second.mode),
        "SGLang": (first.sglang, second.sglang),
        "torch": (first.torch, second.torch),
        "driver": (first.driver, second.driver),
        "NCCL": (first.nccl, second.nccl),
        "model": (first.model, second.model),
        "capture": (first.capture, second.capture),
        "prompt tokens": (first.request.prompt_tokens, second.request.prompt_tokens),
        "output tokens": (first.request.output_tokens, second.request.output_tokens),
    }
    said = [f"{name}: {one or '-'} against {two or '-'}" for name, (one, two) in named.items() if one != two]
    one_env, two_env = {**first.inherited, **first.env}, {**second.inherited, **second.env}
    said += [
        f"${name}: {one_env.get(name, '-')} against {two_env.get(name, '-')}"
        for name in sorted(one_env.keys() | two_env.keys())
        if one_env.get(name) != two_env.get(name)
    ]
    one, two = _flags(first.command), _flags(second.command)
    said += [
        f"{flag}: {one.get(flag, '-')} against {two.get(flag, '-')}"
        for flag in {**one, **two}
        if one.get(flag) != two.get(flag) and flag not in SAID_ELSEWHERE
    ]
    return said + [f"disturbed: {line}" for line in (*first.disturbed, *second.disturbed)]


def _flags(command: list[str]) -> dict[str, str]:
    """Return a command's flags and their values, from `--flag VALUE …`, `--flag=VALUE` and bare `--flag`."""
    found: dict[str, list[str]] = {}
    flag = ""
    for word in command:
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            found[flag] = [value] if value else []
        elif flag:
            found[flag].append(word)
    return {flag: " ".join(values) or "set" for flag, values in found.items()}


def interval(first: list[float], second: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of median(second) / median(first)."""
    draw = random.Random(SEED)  # noqa: S311 - resampling, no secret
    ratios = sorted(
        statistics.median(draw.choices(second, k=len(second))) / statistics.median(draw.choices(first, k=len(first)))
        for _ in range(RESAMPLES)
    )
    tail = (1 - CONFIDENCE) / 2
    return ratios[int(tail * RESAMPLES)], ratios[int((1 - tail) * RESAMPLES) - 1]


def _compare(one: Measurement, two: Measurement) -> Comparison:
    low, high = interval(one.values, two.values)
    first, second = statistics.median(one.values), statistics.median(two.values)
    return Comparison(
        name=one.name,
        unit=one.unit,
        first=first,
        second=second,
        ratio=second / first,
        low=low,
        high=high,
        values=min(len(one.values), len(two.values)),
        verdict=_verdict(second / first, low, high, one, two),
    )


def _verdict(ratio: float, low: float, high: float, one: Measurement, two: Measurement) -> Verdict:
    too_few = min(len(one.values), len(two.values)) < FEWEST_VALUES
    if too_few or low <= 1 <= high or abs(ratio - 1) < SMALLEST_DIFFERENCE:
        return "noise"
    return "faster" if (ratio > 1) == (one.better == "higher") else "slower"
