"""Checks a server's arguments with the parser of the installed SGLang. Host side.

SGLang renames flags between releases, so the installed parser decides: `check_flags` asks it in another
process before a server is started. Called by every server start; changes nothing.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from remote.attach.interpreter import Interpreter
from remote.shared.errors import UsageError
from remote.shared.messages.attach import CheckedFlags

_RADIX = "--disable-radix-cache"
_FUSION = "--enforce-disable-flashinfer-allreduce-fusion"


def capture_flags(options: Collection[str]) -> list[str]:
    """Return the flags that capture needs, under the names of a parser with these `options` (`--tp-size`, …).

    No row may come from a cache. No layer may run inside a graph: Python hooks do not run on replay, and decode graphs
    would only cost time, because nothing is decoded in extract mode. No layer may leave its all-reduce to the next
    layer.
    """
    return [flag for flag in (_RADIX, *_graph_flags(options), _FUSION) if flag.partition("=")[0] in options]


def _graph_flags(options: Collection[str]) -> tuple[str, ...]:
    """Return the flags that disable graphs; `--disable-cuda-graph` alone leaves piecewise graphs on before 0.5.14."""
    if "--cuda-graph-backend-prefill" in options:
        return ("--cuda-graph-backend-decode=disabled", "--cuda-graph-backend-prefill=disabled")
    return ("--disable-cuda-graph", "--disable-piecewise-cuda-graph")


def check_flags(
    flags: Sequence[str],
    *,
    version: str,
    payload: Path,
    capture: bool,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    cwd: Path = Path("/"),
    cache: Path | None = None,
    fingerprint: str = "",
) -> CheckedFlags:
    """Have the installed SGLang parse `flags`; with `capture`, add the missing flags that capture needs.

    A flag that the operator set to another value stays, and `refusals` names it. Raises UsageError for a flag that this
    SGLang does not have (naming the nearest flag) or a value that it does not accept. Answers of an SGLang with this
    `fingerprint` are kept in the folder `cache`.
    """
    kept = None if "--config" in flags else cache  # the file may change
    interpreter = Interpreter(payload, env or {}, python, cwd, kept, fingerprint)
    question = {"flags": list(flags), "capture": capture}
    answer = interpreter.ask_once("remote.attach.flags:parse", question, lambda said: "wrong" not in said)
    if "wrong" in answer:
        raise UsageError(f"SGLang {version} {answer['wrong']}", remedy=str(answer["remedy"]))
    return CheckedFlags(sglang=version, **answer)


class _Wrong(Exception):
    """argparse's own message, raised instead of ending the process."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Wrong(message)


def parse(question: dict[str, Any]) -> dict[str, object]:
    """Answer `check_flags` in the process that it started, which imports SGLang."""
    parser = _server_parser()
    try:
        given = _merged(parser, question["flags"])
        values, unknown = parser.parse_known_args(given)
        if unknown:
            return _unknown(unknown[0], parser)
        added = _missing(parser, values) if question["capture"] else []
        values = parser.parse_args([*given, *added])
    except _Wrong as error:
        return {"wrong": f"does not take these flags: {error}.", "remedy": "Correct `flags` in the inventory."}
    except (OSError, ValueError) as error:
        return {"wrong": f"cannot read its config file: {error}.", "remedy": "Correct --config."}
    defaults = {action.dest: action.default for action in parser._actions}
    return {
        "flags": [*question["flags"], *added],
        "added": added,
        "values": vars(values),
        "defaults": {name: value for name, value in defaults.items() if value is not argparse.SUPPRESS},
    }


def _server_parser() -> _Parser:
    from sglang.srt.server_args import ServerArgs

    parser = _Parser(prog="sglang", add_help=False)
    ServerArgs.add_cli_args(parser)
    return parser


def _merged(parser: argparse.ArgumentParser, flags: list[str]) -> list[str]:
    """Return the flags after those of a `--config` file, as SGLang's launcher merges them."""
    if any(flag.startswith("--config=") for flag in flags):
        raise _Wrong("a file in --config=FILE is not read; write --config and FILE as two entries")
    if "--config" not in flags:
        return flags
    from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

    return list(ConfigArgumentMerger(parser).merge_config_with_args(flags))


def _unknown(flag: str, parser: argparse.ArgumentParser) -> dict[str, object]:
    known = [option for action in parser._actions for option in action.option_strings]
    nearest = difflib.get_close_matches(flag.partition("=")[0], known, n=1, cutoff=0.5)
    remedy = f"The nearest flag that it has is {nearest[0]}." if nearest else "Remove it from `flags`."
    return {"wrong": f"has no flag {flag}.", "remedy": remedy}


def _missing(parser: argparse.ArgumentParser, values: argparse.Namespace) -> list[str]:
    """Return the flags that capture needs and whose option still has its default."""
    options = {option: action for action in parser._actions for option in action.option_strings}
    wanted = capture_flags(options.keys())
    graphs_off = bool(getattr(values, "disable_cuda_graph", False))
    return [
        flag
        for flag in wanted
        if getattr(values, (action := options[flag.partition("=")[0]]).dest) == action.default
        and not (graphs_off and flag.startswith("--cuda-graph-backend-"))
    ]
