"""Runs one verb: reads the call from stdin or from options, and writes the verb's lines to stdout.

Every call imports this module, so it imports only what every verb needs.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ValidationError

from remote.context import Context
from remote.report import LogReport, Report
from remote.shared.errors import PythonError, RoostError, UsageError, of_the_disk
from remote.shared.messages.envelope import BEAT_SECONDS, Beat, Call, Failure, Result, first_problem
from remote.shared.paths import Workdir
from remote.shared.supervised.threads import Thread
from remote.verbs import CHANGING, VERBS

Verb = Callable[[Any, Context], BaseModel]


def main(arguments: list[str]) -> int:
    """Run one verb; exit 0 with a Result, 1 with a Failure, 2 if the request itself was wrong."""
    report = (LogReport if _is_detached(arguments) else Report)(_claim_stdout())
    try:
        call = _read_call(arguments)
        if call.tethered:
            _end_with_stdin()
            _send_beats(report)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return _failed(error, report)
    return answer(call, report)


def answer(call: Call, report: Report) -> int:
    """Run one verb, and report its result or its error as the last line; return the exit code."""
    try:
        with _recorded(call, report):
            value = _run(call, report).model_dump(mode="json")
        report.line(Result(value=value))
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return _failed(error, report)


def _failed(error: Exception, report: Report) -> int:
    report.line(_failure(error))
    return 2 if isinstance(error, UsageError) else 1


def _recorded(call: Call, report: Report) -> AbstractContextManager[None]:
    """Write a verb that changes something to the host's trail."""
    if call.verb not in CHANGING or call.request.get("dry_run"):
        return nullcontext()
    from remote.logs.trail import recorded

    return recorded(call, report)


def _is_detached(arguments: list[str]) -> bool:
    """Return whether stdout is a log that people read, because the options have `--output log`."""
    return ("--output", "log") in pairwise(arguments)


def _failure(error: Exception) -> Failure:
    known = of_the_disk(error) if isinstance(error, OSError) and not isinstance(error, RoostError) else error
    if isinstance(known, RoostError):
        return Failure(kind=known.kind, message=known.message, remedy=known.remedy, details=dict(known.details))
    return Failure(
        kind="internal",
        message=f"{type(error).__name__}: {error}",
        details={"traceback": traceback.format_exc()},
    )


def _claim_stdout() -> Any:
    """Keep the real stdout for protocol lines; other output (of a library, a warning) goes to stderr."""
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return protocol


def _read_call(arguments: list[str]) -> Call:
    if len(arguments) > 1:
        return _call_from_options(arguments[0], arguments[1:])
    try:
        call = Call.model_validate_json(sys.stdin.buffer.readline())
    except ValidationError as error:
        raise UsageError(f"The request could not be read: {first_problem(error)}.") from error
    if arguments and arguments[0] != call.verb:
        raise UsageError(f"The command line says {arguments[0]!r} and the request says {call.verb!r}.")
    return call


def _call_from_options(verb: str, options: list[str]) -> Call:
    """Return the `--field value` pairs as a request. Values remain texts, which pydantic converts."""
    pairs = dict(zip(options[::2], options[1::2], strict=False))
    if len(options) % 2 or not all(key.startswith("--") for key in pairs):
        raise UsageError(f"Options of {verb!r} come in pairs, as in --assignment FILE.")
    request = {key[2:].replace("-", "_"): value for key, value in pairs.items()}
    workdir = request.pop("workdir", "~/roost")
    request.pop("output", None)
    return Call(verb=verb, workdir=workdir, request=dict(request))


def _run(call: Call, report: Report) -> BaseModel:
    verb = _load(call.verb)
    context = Context(Workdir(Path(call.workdir).expanduser()), report, call.operator)
    request_type = get_type_hints(verb)["request"]
    try:
        request = request_type.model_validate(call.request)
    except ValidationError as error:
        raise UsageError(f"The request for {call.verb!r} is wrong: {first_problem(error)}.") from error
    gc.enable()  # `remote.__main__` disabled it for the imports
    return verb(request, context)


def _load(name: str) -> Verb:
    if name not in VERBS:
        raise UsageError(f"There is no verb {name!r}.", remedy=f"Verbs: {', '.join(sorted(VERBS))}.")
    module, function = VERBS[name].split(":")
    try:
        verb: Verb = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise _lacking(name, error) from error
    return verb


def _lacking(verb: str, error: ModuleNotFoundError) -> RoostError:
    """Explain a missing package: a host's `python` is often the system's instead of SGLang's."""
    return PythonError(
        f"{sys.executable} has no module {error.name!r}, which {verb!r} needs.",
        remedy="Set the host's `python` to the one with SGLang; for the laptop, set `python` under `local:` to one "
        "with Roost's extra `data` (in a clone: pip install -e '.[data]').",
    )


def _end_with_stdin() -> None:
    """End this process when stdin closes, so that a cut connection leaves nothing running."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        _interrupt()

    Thread(watch, "stdin-watch", on_end=_interrupt)


def _send_beats(report: Report) -> None:
    """Send beats, by which the laptop recognises a frozen host.

    If a beat cannot be written, the caller has gone, and the verb ends.
    """
    never = threading.Event()

    def beat() -> None:
        while not never.wait(BEAT_SECONDS):
            report.line(Beat())

    Thread(beat, "beats", on_end=_interrupt)


def _interrupt(cause: BaseException | None = None) -> None:
    """End the verb as a Ctrl-C would."""
    if cause is not None:
        print(f"The verb is ended: {type(cause).__name__}: {cause}", file=sys.stderr)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGINT)
