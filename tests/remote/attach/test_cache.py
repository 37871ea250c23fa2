"""SGLang's answers are kept while their digest is the same, and asked again when something changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from remote.attach import cache
from remote.attach.interpreter import Interpreter


class Asked:
    """Counts what really goes to a process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> None:
        self.times = 0
        self.answer = answer
        monkeypatch.setattr(Interpreter, "ask", self._ask)

    def _ask(self, *_: object, **__: object) -> dict[str, Any]:
        self.times += 1
        return self.answer


def ask(folder: Path, fingerprint: str = "f", **env: str) -> dict[str, Any]:
    interpreter = Interpreter(Path("/payloads/abc"), env, cache=folder, fingerprint=fingerprint)
    return interpreter.ask_once("a:b", {"flags": []}, lambda said: said.get("problem") == "")


def test_a_good_answer_is_kept_until_something_that_it_depends_on_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch, {"problem": "", "file": "x.py"})
    assert ask(tmp_path) == ask(tmp_path) == asked.answer
    assert asked.times == 1
    assert next(tmp_path.glob("*.json")).stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("SSH_CONNECTION", "another login")
    ask(tmp_path)
    assert asked.times == 1
    ask(tmp_path, SGLANG_PLUGINS="none")
    ask(tmp_path, fingerprint="another")
    assert asked.times == 3


def test_a_bad_answer_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, {"error": "ImportError"})
    ask(tmp_path)
    ask(tmp_path)
    assert asked.times == 2
    assert list(tmp_path.iterdir()) == []


def test_a_torn_answer_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, {"problem": ""})
    ask(tmp_path)
    next(tmp_path.glob("*.json")).write_text('{"prob')
    ask(tmp_path)
    assert asked.times == 2


def test_only_the_newest_answers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_KEPT", 3)
    Asked(monkeypatch, {"problem": ""})
    for number in range(6):
        ask(tmp_path, fingerprint=str(number))
    assert len(list(tmp_path.glob("*.json"))) == 3


@pytest.mark.parametrize("change", ["edit", "add", "package"])
def test_a_changed_file_or_package_changes_the_fingerprint(tmp_path: Path, change: str) -> None:
    package = tmp_path / "sglang"
    (package / "srt").mkdir(parents=True)
    model = package / "srt" / "model.py"
    model.write_text("a = 1")
    (tmp_path / "torch-2.13.dist-info").mkdir()
    before = cache.fingerprint(package, [str(tmp_path)])
    assert cache.fingerprint(package, [str(tmp_path)]) == before
    if change == "edit":
        model.write_text("a = 2")
        os.utime(model, ns=(1, 1))
    elif change == "add":
        (package / "srt" / "other.py").touch()
    else:
        (tmp_path / "plugin-1.0.dist-info").mkdir()
    assert cache.fingerprint(package, [str(tmp_path)]) != before
