"""Output of `answer`: the plan, and the table of answers at the end."""

from __future__ import annotations

from collections.abc import Sequence

from hosts.commands.answer import PlannedAnswers
from hosts.console.output import Output
from hosts.fleet import Outcome
from hosts.units import duration
from remote.shared.messages.answers import AnswerTable
from remote.shared.messages.run import Answering

_BAR = 40
_MARKS = {
    "length": "cut at the limit of tokens",
    "empty": "without text",
    "repeating": "repeating itself",
    "refused": "refused (English phrases)",
}


def show_planned(output: Output, planned: PlannedAnswers) -> None:
    """Print the sampling settings and each host's share."""
    settings, plan = planned.settings, planned.plan
    output.line(f"sampling: {sampling_line(settings)}")
    if planned.prompts is not None:
        made = planned.prompts
        output.line(
            f"{made.manifest.records:,} prompts, {made.turns:,} answers to give, {made.manifest.tokens:,} tokens of"
            f" first prompts; {made.expected_tokens:,} tokens expected in all"
        )
        for drop in made.manifest.drops:
            output.note(f"left out: {drop.records:,} because {drop.reason} ({', '.join(drop.examples)})")
    rows = []
    for share in plan.shares:
        speed = planned.speeds.get(share.host)
        known = speed.tokens_per_second if speed is not None and speed.measured else None
        seconds = share.tokens / known if known else None
        rows.append((share.host, share.records, share.tokens, "unknown" if seconds is None else duration(seconds)))
    output.table(("host", "prompts", "expected tokens", "time"), rows)


def sampling_line(settings: Answering) -> str:
    """Return `temperature 0.6 (of the model), top_p 0.95 (of the model), max_tokens 4096, seed 0, turns all`."""
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty", "max_tokens")
    shown = [
        f"{name} {getattr(settings, name):g}{' (of the model)' if name in settings.from_model else ''}"
        for name in names
        if name in ("temperature", "max_tokens")
        or name in settings.from_model
        or getattr(settings, name) != Answering.model_fields[name].default
    ]
    shown += [f"seed {settings.seed}", f"turns {settings.turns}", f"too long: {settings.too_long}"]
    shown += [f"{settings.samples} answers a prompt"] if settings.samples > 1 else []
    shown += [f"stop {', '.join(map(repr, settings.stop))}"] if settings.stop else []
    shown += [f"dropped: {', '.join(settings.drop)}"] if settings.drop else []
    return ", ".join(shown)


def show_table(output: Output, table: AnswerTable, outcomes: Sequence[Outcome[AnswerTable]]) -> None:
    """Print the statistics of the finished answers of all hosts."""
    for outcome in outcomes:
        if outcome.error is not None:
            output.note(f"{outcome.host.name}: its answers could not be counted: {outcome.error.message}")
    if not table.records or output.as_json:
        return
    rows: list[tuple[object, ...]] = [
        ("conversations", table.records, f"{table.turns:,} turns, {table.rows:,} training records"),
        ("sampled tokens", table.answer_tokens, f"after {table.prompt_tokens:,} tokens of prompts"),
        *(("turns finished by", count, reason) for reason, count in sorted(table.finish.items())),
        *(("marked", count, _MARKS.get(mark, mark)) for mark, count in sorted(table.marks.items())),
        *(("left out by prepare", count, _MARKS.get(mark, mark)) for mark, count in sorted(table.dropped.items())),
        *(("ended early", count, why) for why, count in sorted(table.ended.items())),
        ("other ids through text", table.changed, f"of {table.records:,}: tokenizing their text again gives other ids"),
    ]
    output.table(("answers", "", ""), rows)
    most = max(table.lengths.values())
    bars = [
        (f"{_low(bits):,} to {(1 << bits) - 1:,}", count, "█" * round(_BAR * count / most) or "▏")
        for bits, count in sorted(table.lengths.items())
    ]
    output.table(("sampled tokens", "conversations", ""), bars)
    if not table.deterministic:
        output.note(f"Not deterministic: {table.why_not}.")


def _low(bits: int) -> int:
    return 1 << (bits - 1) if bits else 0
