"""The verb `bench`: measures a ready server. Runs on the host, called by `inv bench` and `inv tune`; read-only."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil

from remote.attach.verbs import attached
from remote.bench.answers import Answers, problem
from remote.bench.cases import Case, cases, left_out
from remote.bench.condition import conditions, driver, slowed, strangers
from remote.bench.generator import run_all
from remote.context import Context
from remote.model_config import find_number
from remote.servers.lifecycle import key
from remote.servers.lifecycle.records import load, report
from remote.shared.errors import HostError
from remote.shared.messages.attach import AttachedRequest
from remote.shared.messages.bench import BenchRequest, BenchResult, Measurement, Sent
from remote.shared.messages.server import ServerState
from remote.shared.redact import redacted

DEFAULT_CONTEXT = 4096
"""Assumed if neither the command line nor the model tells; long enough for the shorter prefill lengths."""


def bench(request: BenchRequest, context: Context) -> BenchResult:
    """Warm up, then run every case `repetitions` times, interleaved, so that a drift affects all cases alike.

    Each round has new prompts, because a radix cache would answer a repeated prompt without computing it.

    Raises HostError if the server is not ready, its context is too short for every requested case, SGLang's load
    generator fails, or a request was not answered completely or had a prompt of another length.
    """
    state = _ready(request.server, context)
    context_length = _context_length(state)
    wanted, unmeasured = list(cases(request, context_length)), left_out(request, context_length)
    if not wanted:
        raise HostError(f"There is nothing to measure. {' '.join(unmeasured)}".rstrip())
    rounds = range(1 + request.repetitions)
    runs = [_arguments(state, case, request.seed + number) for number in rounds for case in wanted]
    before = conditions()
    disturbed = dict.fromkeys([*slowed(before), *strangers(state)])
    begun = time.time()

    def on_run(done: int) -> None:
        repetition = min(done // len(wanted), request.repetitions)
        text = f"repetition {repetition} of {request.repetitions}" if repetition else "warming up"
        context.report.progress(text, done=done, total=len(runs), unit="runs")
        # A GPU that was slowed down under load may have recovered at the end.
        disturbed.update(dict.fromkeys([*strangers(state), *slowed(conditions())]))

    secret = key.bare(context.workdir.server(state.name))
    done = run_all(runs, secret, request.deadline_seconds, on_run)
    _check_answers(wanted, [run.answers for run in done])
    after = conditions()
    return BenchResult(
        server=state.name,
        mode=state.mode,
        taken_at=begun,
        seconds=time.time() - begun,
        sglang=state.sglang,
        torch=importlib.metadata.version("torch"),
        driver=driver(),
        nccl=nccl_version(),
        model=state.model,
        command=state.command,
        env=redacted(state.spec.env),
        inherited=_inherited(state),
        capture=_capture(state, context),
        payload=context.payload.name,
        request=request,
        measurements=_measurements(wanted, [run.result for run in done[len(wanted) :]]),
        sent=[
            Sent(
                name=case.name,
                requests=case.prompts * request.repetitions,
                prompt_tokens=case.prompt_tokens,
                output_tokens=case.output_tokens,
            )
            for case in wanted
        ],
        gpus_before=before,
        gpus_after=after,
        left_out=unmeasured,
        disturbed=list(disturbed | dict.fromkeys(slowed(after))),
    )


def _ready(name: str, context: Context) -> ServerState:
    state = load(context.workdir.server(name))
    if state is None or state.status != "ready" or not report(state).alive:
        raise HostError(f"Server {name!r} is not ready: {_standing(state)}.", remedy="Start it first: inv serve.")
    return state


def _standing(state: ServerState | None) -> str:
    if state is None:
        return "there is no record of it"
    return "its process is gone" if state.status == "ready" else f"it is {state.status}"


def _context_length(state: ServerState) -> int:
    """Return the longest prompt that the server accepts, from its command line or the model's config."""
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--context-length", type=int)
    given: int | None = flags.parse_known_args(state.command)[0].context_length
    if given is not None:
        return given
    try:
        config = json.loads((Path(state.model) / "config.json").read_bytes())
    except (OSError, ValueError):
        return DEFAULT_CONTEXT
    return find_number(config, "max_position_embeddings") or DEFAULT_CONTEXT


def _arguments(state: ServerState, case: Case, seed: int) -> list[str]:
    """Return the load generator's arguments for one case and this server."""
    return [
        *("--backend", "sglang"),
        *("--base-url", f"http://127.0.0.1:{state.port}"),
        *("--model", state.model),
        *("--tokenizer", state.model),
        *("--dataset-name", "random-ids"),
        *("--seed", str(seed)),
        "--disable-tqdm",
        *case.arguments(),
    ]


def _capture(state: ServerState, context: Context) -> Literal["none", "dormant", "active"]:
    """Return `dormant` if the server captures nothing but was started after its model files were patched."""
    if state.capture is not None:
        return "active"
    files = attached(AttachedRequest(env=state.spec.env), context).files
    patched = [Path(file.path) for file in files if file.state == "attached"]
    return "dormant" if any(path.stat().st_mtime < state.started_at for path in patched) else "none"


def _check_answers(wanted: list[Case], heard: list[Answers]) -> None:
    """Raise HostError if a request failed, broke off, or had a prompt of another length."""
    for number, answers in enumerate(heard):
        case = wanted[number % len(wanted)]
        why = problem(answers, case.prompts, case.prompt_tokens, case.output_tokens)
        if why:
            raise HostError(
                f"The server's speed was not measured ({case.name}): {why}.",
                remedy="See the server's log (inv logs).",
            )


def nccl_version() -> str:
    """Return the version of the NCCL package beside torch; empty if there is none."""
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def _inherited(state: ServerState) -> dict[str, str]:
    """Return the server's NCCL variables that the host's login set, not Roost; secrets are `***`."""
    assert state.server is not None
    try:
        environment = psutil.Process(state.server.pid).environ()
    except psutil.Error:
        return {}
    own = state.spec.env
    return redacted(
        {name: value for name, value in environment.items() if name.startswith("NCCL_") and name not in own}
    )


def _measurements(wanted: list[Case], results: list[dict[str, Any]]) -> list[Measurement]:
    """Return each quantity's values over the repetitions; `results` holds the rounds one after the other."""
    rounds = [results[start : start + len(wanted)] for start in range(0, len(results), len(wanted))]
    return [
        Measurement(
            name=quantity.name,
            unit=quantity.unit,
            better=quantity.better,
            values=[float(each[number][quantity.key]) for each in rounds],
        )
        for number, case in enumerate(wanted)
        for quantity in case.quantities
    ]
