"""Wrong usage is one sentence with a remedy, and exit code 2; no host is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context
from invoke.tasks import Task

from hosts.tasks import (
    attaching,
    data,
    delivery,
    extraction,
    practice,
    reach,
    results,
    servers,
    storage,
    tuning,
    watching,
)

INVENTORY = """
defaults: {layers: [1], address: host.invalid}
groups: {east: [a, b]}
modes: {serve: {}, extract: {capture: true}}
hosts:
  {a: {model: /nope}, b: {model: /nope}, few: {model: /nope, gpus: 4, format: specforge}, alone: {model: /nope, tp: 1}}
"""

WRONG: list[tuple[Task[Any], dict[str, Any], str]] = [
    (reach.doctor, {"host": "c"}, "There is no host or group 'c'."),
    (reach.doctor, {"hosts": "eats"}, "Did you mean 'east'?"),
    (reach.doctor, {"hosts": ""}, "No host was named."),
    (reach.deploy, {}, "No host was named."),
    (attaching.attach, {"host": "a", "way": "hook"}, "--way hook is not one of"),
    (data.prepare, {}, "--input, --out and --tokenizer are missing."),
    (data.prepare, {"input": ["x"], "out": "y", "tokenizer": "z", "max_len": -1}, "--max-len is -1"),
    (data.inspect, {"hosts": ""}, "No host was named."),
    (data.inspect, {"dataset": "x", "records": "one"}, "--records 'one' is not a list of indices"),
    (data.plan, {"hosts": "all"}, "--dataset is missing."),
    (servers.serve, {"hosts": "all", "mode": "extrct"}, "Did you mean 'extract'?"),
    (servers.stop, {"hosts": "all", "grace": -3.0}, "--grace is -3"),
    (storage.clean, {"hosts": "all", "older_than": -1.0}, "--older-than is -1"),
    (extraction.extract, {"hosts": "all"}, "No run is planned"),
    (extraction.extract, {"hosts": "all", "run": "none"}, "There is no plan of the run"),
    (extraction.extract, {"hosts": "all", "run": "r", "pause": True, "stop": True}, "Give only one of --pause"),
    (extraction.extract, {"hosts": "all", "run": "r", "retry_quarantined": True, "stop": True}, "leave out --stop"),
    (extraction.extract, {"hosts": "all", "run": "r", "records": "3"}, "--records needs --retry-quarantined"),
    (watching.logs, {"hosts": "all", "since": "10x"}, "--since '10x' is not a span of time."),
    (watching.logs, {"hosts": "all", "grep": "("}, "--grep '(' is not a regular expression"),
    (watching.logs, {"hosts": "all", "lines": "few"}, "--lines 'few' is not a number."),
    (delivery.pull, {"hosts": "all"}, "--to is missing."),
    (delivery.pull, {"hosts": "all", "to": "x", "dtype": "fp8"}, "Add --export FOLDER"),
    (delivery.pull, {"hosts": "all", "to": "x", "export": "y", "dtype": "int8"}, "There is no dtype 'int8' to export."),
    (delivery.pull, {"hosts": "all", "to": "few:x", "export": "y", "dtype": "fp8"}, "format of few is specforge."),
    (storage.unpack, {}, "--paths is missing."),
    (results.export, {"folder": "x"}, "--out is missing."),
    (results.export, {"folder": "x", "out": "y", "format": "zip"}, "There is no format 'zip'."),
    (results.export, {"folder": "x", "out": "y", "dtype": "int8"}, "There is no dtype 'int8' to export."),
    (results.verify, {"folder": "x", "hosts": "all"}, "says where --repair queues"),
    (tuning.diff_modes, {"host": "a", "first": "srve"}, "Did you mean 'serve'?"),
    (tuning.bench, {"hosts": "all", "mode": "srve"}, "Did you mean 'serve'?"),
    (tuning.bench, {"hosts": "all", "profile": "single,prefil"}, "There is no profile 'prefil'."),
    (tuning.bench, {"hosts": "all", "repetitions": 0}, "--repetitions is 0, but must be at least 1."),
    (tuning.bench, {"hosts": "all", "concurrency": "8,many"}, "'8,many' is not a list of numbers."),
    (tuning.bench, {"hosts": "all", "label": "../x"}, "label '../x' cannot be used"),
    (tuning.bench, {"compare": "before"}, "--compare needs two results."),
    (tuning.bench, {"compare": "before,after"}, "There is no result 'before'."),
    (tuning.tune, {"host": "few"}, "few gives 'main' 4 GPUs for tp 8."),
    (
        tuning.tune,
        {"host": "alone"},
        "alone runs 'main' with tp 1, so there is no communication between ranks to tune.",
    ),
    (tuning.tune, {"host": "a", "goal": "speed"}, "There is no goal 'speed'."),
    (tuning.tune, {"host": "a", "repetitions": 3}, "--repetitions is 3, but must be at least 4."),
    (tuning.tune, {"host": "a", "mode": "srve"}, "Did you mean 'serve'?"),
    (practice.practice, {"action": "upp"}, "The practice fleet cannot 'upp'."),
]


@pytest.mark.parametrize(("task", "options", "said"), WRONG)
def test_wrong_usage_is_refused_with_a_remedy(
    task: Task[Any], options: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(INVENTORY)
    given = options if task is practice.practice else {**options, "inventory": str(inventory)}
    with pytest.raises(SystemExit) as raised:
        task(Context(), **given)
    shown = capsys.readouterr()
    assert raised.value.code == 2
    assert said in shown.err
    assert shown.out == ""


def test_a_missing_inventory_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        reach.doctor(Context(), hosts="all", inventory=str(tmp_path / "none.yaml"))
    assert raised.value.code == 2
    assert "could not be read: No such file or directory" in capsys.readouterr().err
