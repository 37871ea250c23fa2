"""The measurements of each profile, as arguments of `sglang.bench_serving` and keys of its result. Host side, pure.

Prompts are random token ids (`--dataset-name random-ids`), so nothing is downloaded. Every SGLang from 0.5.9 to 0.5.23
has these arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from remote.shared.messages.bench import BenchRequest


@dataclass(frozen=True)
class Quantity:
    """One number of the load generator's result."""

    key: str
    name: str
    unit: str
    better: Literal["higher", "lower"]


@dataclass(frozen=True)
class Case:
    """One run of the load generator."""

    name: str
    """Its name in a sentence: `single stream`, `prompts of 512`, `64 at once`."""
    prompts: int
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    quantities: tuple[Quantity, ...]

    def arguments(self) -> list[str]:
        """The arguments that belong to this case alone."""
        return [
            *("--num-prompts", str(self.prompts)),
            *("--random-input-len", str(self.prompt_tokens)),
            *("--random-output-len", str(self.output_tokens)),
            *("--random-range-ratio", "1.0"),
            # Token ids: the server would turn text into other tokens, often twice as many.
            "--tokenize-prompt",
            *("--warmup-requests", "0"),
            *("--max-concurrency", str(self.concurrency)),
        ]


def cases(request: BenchRequest, context_length: int) -> Iterator[Case]:
    """Return the cases of the requested profiles, without the prefill lengths in `left_out`."""
    if "single" in request.profiles:
        yield _single(request)
    if "prefill" in request.profiles:
        for length in request.prefill_lengths:
            if _fits(length, context_length):
                yield _prefill(length)
    if "concurrent" in request.profiles:
        for concurrency in request.concurrency:
            yield _concurrent(request, concurrency)


def left_out(request: BenchRequest, context_length: int) -> list[str]:
    """Return a sentence for each prefill length that exceeds the context."""
    lengths = request.prefill_lengths if "prefill" in request.profiles else []
    return [
        f"Prefill of {length} tokens was left out: the server's context holds {context_length}."
        for length in lengths
        if not _fits(length, context_length)
    ]


def _fits(length: int, context_length: int) -> bool:
    return length + 1 < context_length


def _single(request: BenchRequest) -> Case:
    decode = Quantity("output_throughput", "decode tokens/s, single stream", "tokens/s", "higher")
    first = Quantity("median_ttft_ms", "time to first token, single stream", "ms", "lower")
    return Case("single stream", 4, request.prompt_tokens, request.output_tokens, 1, (decode, first))


def _prefill(length: int) -> Case:
    prefill = Quantity("input_throughput", f"prefill tokens/s, prompts of {length}", "tokens/s", "higher")
    return Case(f"prompts of {length}", 8, length, 1, 4, (prefill,))


def _concurrent(request: BenchRequest, concurrency: int) -> Case:
    total = Quantity("output_throughput", f"decode tokens/s, {concurrency} at once", "tokens/s", "higher")
    return Case(
        f"{concurrency} at once", 2 * concurrency, request.prompt_tokens, request.output_tokens, concurrency, (total,)
    )
