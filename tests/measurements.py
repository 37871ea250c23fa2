"""A result of `inv bench` for tests that need its values and little else of it."""

from __future__ import annotations

from remote.shared.messages.bench import BenchRequest, BenchResult, Measurement


def measured(values: list[float], better: str = "higher", **changes: object) -> BenchResult:
    """One quantity, `decode`, on gpu1 in mode `serve`; `changes` are fields of the result."""
    base = BenchResult(
        host="gpu1",
        server="main",
        mode="serve",
        taken_at=0.0,
        seconds=1.0,
        sglang="0.5.23",
        torch="2.14.1",
        model="/m",
        command=["python", "--tp-size", "8"],
        env={},
        capture="none",
        payload="x",
        request=BenchRequest(),
        measurements=[Measurement(name="decode", unit="tokens/s", better=better, values=values)],
    )
    return base.model_copy(update=changes)
