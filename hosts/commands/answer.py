"""`inv answer`: plans a run that answers prompts on the hosts. Laptop's side; prints nothing.

A planned run of answers is started, followed and steered like an extraction (`hosts.commands.extract`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hosts.commands.plan import (
    Speed,
    context_length,
    earlier_epoch,
    leads,
    measured_rates,
    one_model,
    prospects_of,
    weights,
)
from hosts.commands.prepare import local_path, tokenizer_of
from hosts.commands.runs import local_plan, plan_for
from hosts.errors import UsageError
from hosts.fleet import Fleet, Outcome
from hosts.inventory.model import Host
from hosts.plan.lengths import read_costs, read_manifest
from hosts.plan.plan import Plan, keep_other, make_plan, save
from remote.shared.messages.answers import AnswersRequest, AnswerTable, PromptsRequest, PromptsResult, longest_prompt
from remote.shared.messages.envelope import Progress
from remote.shared.messages.plan import Generation, Prospect
from remote.shared.messages.run import Answering, RunIdentity, new_nonce

USUAL_ANSWER = 512
"""For planning: the expected tokens of an answer if the data has no answer in its place."""
DEFAULT_MAX_TOKENS = 4096

OnProgress = Callable[[Host, Progress], None]


@dataclass(frozen=True)
class Asked:
    """The options that a person typed, without defaults."""

    sampling: dict[str, Any] = field(default_factory=dict)
    """Values for fields of `Answering`."""
    inputs: list[str] = field(default_factory=list)
    tokenizer: str | None = None
    bad: str = "error"
    keys: dict[Any, str] = field(default_factory=dict)
    ignore: list[str] = field(default_factory=list)
    trust_remote_code: bool = False
    concurrency: int | None = None


@dataclass(frozen=True)
class PlannedAnswers:
    """A planned run of answers."""

    plan: Plan
    prompts: PromptsResult | None
    """The prompts that were made for this plan; None if the run was planned before."""
    speeds: dict[str, Speed] = field(default_factory=dict)

    @property
    def settings(self) -> Answering:
        """The sampling settings of the run."""
        assert self.plan.identity.answers is not None
        return self.plan.identity.answers


def planned_before(fleet: Fleet, run: str, asked: Asked) -> PlannedAnswers | None:
    """The run's plan, if it has one here or on the hosts; None if it has none.

    Raises UsageError if the run extracts states, or was planned with other options than were typed now.
    """
    if not local_plan(fleet, run).exists():
        try:
            plan = plan_for(fleet, run)
        except UsageError:
            if not asked.inputs:
                raise
            return None
    plan = plan_for(fleet, run)
    answers = plan.identity.answers
    if answers is None:
        raise UsageError(
            f"The run {run!r} extracts hidden states, so inv answer cannot continue it.",
            remedy="Give the answers another name with --run.",
        )
    for name, value in asked.sampling.items():
        if getattr(answers, name) != value:
            option = "--" + name.replace("_", "-")
            raise UsageError(
                f"The run {run!r} was planned with {option} {getattr(answers, name)}, but now {value} is given.",
                remedy="Leave the option out to continue as planned, or give the changed run another name with --run.",
            )
    return PlannedAnswers(plan, None)


def plan(
    fleet: Fleet, run: str, asked: Asked, on_progress: OnProgress | None = None, *, dry_run: bool = False
) -> PlannedAnswers:
    """Render the prompts on this laptop and share them out by expected tokens; writes the plan unless it is a dry run.

    Raises the first host's error if a host does not answer, and UsageError if hosts differ in their model.
    """
    path = local_plan(fleet, run)
    epoch = earlier_epoch(fleet, run, path, anew=False, force=False) + 1
    leaders = fleet.narrowed([host for host in fleet.hosts if leads(host)])
    prospects = prospects_of(leaders)
    prospect = one_model(leaders.hosts, prospects)
    _refuse_other_defaults(leaders.hosts, prospects)
    context = min(context_length(host, prospects[host.name]) for host in leaders.hosts)
    settings = _settings(asked, prospect.generation, context)
    with tempfile.TemporaryDirectory(prefix="roost-prompts-") as scratch:
        out = Path(scratch) / "prompts" if dry_run else fleet.inventory.kept.prompts(run)
        made = _prompts(fleet, asked, settings, out, context, on_progress)
        manifest = read_manifest(out)
        settings = settings.model_copy(update={"template": manifest.template, "date": manifest.date})
        identity = RunIdentity(
            name=run,
            nonce=new_nonce(),
            dataset=manifest.digest,
            tokenizer=manifest.tokenizer,
            model=prospect.model.digest,
            model_path=prospect.model.path,
            boundaries=(),
            final="pre",
            hidden_size=0,
            dtype="BF16",
            answers=settings,
        )
        speeds = measured_rates(leaders, None, "answer")
        shared = weights({host: speed.tokens_per_second for host, speed in speeds.items()})
        plan = make_plan(str(out), identity, read_costs(out, manifest), shared, epoch=epoch)
    shares = [share.model_copy(update={"context_length": context}) for share in plan.shares]
    plan = plan.model_copy(update={"shares": shares, "concurrency": asked.concurrency}).signed()
    if not dry_run:
        keep_other(path, plan)
        save(plan, path)
    return PlannedAnswers(plan, made, speeds)


def table(fleet: Fleet, plan: Plan) -> tuple[AnswerTable, list[Outcome[AnswerTable]]]:
    """Return the statistics of all hosts' answers together, and of each host."""
    sharing = fleet.narrowed([host for host in fleet.hosts if plan.share(host.name) is not None])
    outcomes = sharing.call("answers", AnswersRequest(run=plan.identity), AnswerTable)
    whole = AnswerTable()
    for outcome in outcomes:
        if outcome.value is not None:
            whole.add(outcome.value)
    return whole, outcomes


def _prompts(
    fleet: Fleet, asked: Asked, settings: Answering, out: Path, context: int, on_progress: OnProgress | None
) -> PromptsResult:
    local = fleet.inventory.local
    tokenizer = tokenizer_of(fleet.inventory, local, asked.tokenizer)
    if not tokenizer:
        raise UsageError(
            "This laptop has no tokenizer to render the prompts.",
            remedy="Copy the model's tokenizer files here (no weights) and name their folder with --tokenizer.",
        )
    request = PromptsRequest(
        inputs=[local_path(local, path) for path in asked.inputs],
        out=str(out),
        tokenizer=tokenizer,
        turns=settings.turns,
        samples=settings.samples,
        max_len=longest_prompt(context, settings),
        expected=min(USUAL_ANSWER, settings.max_tokens),
        bad="drop" if asked.bad == "drop" else "error",
        keys=asked.keys,
        ignore=asked.ignore,
        template_options=dict(settings.template_options),
        date=settings.date,
        trust_remote_code=asked.trust_remote_code,
    )
    return fleet.local.call(
        "prompts",
        request,
        PromptsResult,
        deadline=None,
        on_progress=None if on_progress is None else lambda line: on_progress(local, line),
    )


def _settings(asked: Asked, defaults: Generation, context: int) -> Answering:
    """Return the settings: the typed options, else the model's own defaults, else SGLang's."""
    own = {key: value for key, value in defaults.model_dump(exclude_none=True).items() if key not in asked.sampling}
    if "max_tokens" not in own and "max_tokens" not in asked.sampling:
        own_most = min(DEFAULT_MAX_TOKENS, context)
        return Answering(**{**own, "max_tokens": own_most, **asked.sampling}, from_model=tuple(sorted(own)))
    return Answering(**{**own, **asked.sampling}, from_model=tuple(sorted(own)))


def _refuse_other_defaults(hosts: list[Host], prospects: dict[str, Prospect]) -> None:
    first = hosts[0].name
    for host in hosts:
        if prospects[host.name].generation != prospects[first].generation:
            raise UsageError(
                f"{first} and {host.name} have models with other sampling defaults in generation_config.json.",
                remedy="Copy one host's file to the other.",
            )
