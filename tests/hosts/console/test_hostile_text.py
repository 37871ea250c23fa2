"""What hosts say reaches the terminal as text: no escape is executed, no markup understood, no number too odd."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from hosts.commands.status import HostStatus
from hosts.console import attach, bench, extraction, servers, verify
from hosts.console.attach import show_standing
from hosts.console.logs import LogPrinter
from hosts.console.output import Output, new_console
from hosts.console.text import moment, printable
from hosts.errors import HostError
from hosts.fleet import Outcome
from hosts.inventory.model import Host
from hosts.tasks import storage
from hosts.units import duration, size
from remote.shared.messages.attach import AttachReport
from remote.shared.messages.bench import BenchResult
from remote.shared.messages.clean import CleanResult
from remote.shared.messages.extract import ExtractorState, RunStatus
from remote.shared.messages.logs import LogLines, LogNotice
from remote.shared.messages.server import ServeResult, StopResult
from remote.shared.messages.verify import Fault, VerifyResult
from tests.hostile import examples, floats, ints, texts, values_of

HOST = Host(name="gpu1")


class Screen(Output):
    """An Output on a colour terminal whose bytes are kept."""

    def __init__(self) -> None:
        super().__init__(as_json=False)
        self.seen = io.StringIO()
        self.out = self.err = new_console()
        self.out.file = self.seen

    @property
    def text(self) -> str:
        return self.seen.getvalue()


def is_harmless(text: str) -> bool:
    """Only printable characters, tabs and line ends."""
    return all(char.isprintable() or char in "\n\t" for char in text)


@examples(100)
@given(texts)
def test_text_is_shown_as_it_is_and_control_characters_as_their_codes(text: str) -> None:
    screen = Screen()
    screen.note(text)
    assert screen.text == printable(text).expandtabs() + "\n"
    assert is_harmless(screen.text)


@examples(40)
@given(texts, texts, st.lists(texts, max_size=3))
def test_an_error_is_shown_with_all_its_words(message: str, remedy: str, lines: list[str]) -> None:
    screen = Screen()
    screen.error(HostError(message, remedy=remedy, details={"lines": lines}), "gpu1")
    assert is_harmless(screen.text)
    for words in (message, remedy, *lines):
        assert "\t" in words or printable(words) in screen.text


@examples(50)
@given(st.lists(st.tuples(texts, ints, texts), min_size=1, max_size=3))
def test_a_table_s_cells_are_text(rows: list[tuple[str, int, str]]) -> None:
    screen = Screen()
    screen.table(("one", "two", "three"), rows)
    assert is_harmless(screen.text)


@examples(50)
@given(st.one_of(floats, ints))
def test_any_number_can_be_shown(number: float) -> None:
    assert is_harmless(size(number) + duration(number) + moment(number))


Shown = tuple[type[BaseModel], Callable[[Output, Any], object]]

SHOWN: dict[str, Shown] = {
    "attach": (AttachReport, lambda out, one: out.outcomes([one], attach.attach_line)),
    "attached": (AttachReport, lambda out, one: out.outcomes([one], attach.attached_line, attach.is_amiss)),
    "standing": (AttachReport, lambda out, one: show_standing(out, [one])),
    "bench": (BenchResult, lambda out, one: out.outcomes([one], bench.bench_line)),
    "measurements": (BenchResult, lambda out, one: bench.show_measurements(out, [one])),
    "clean": (CleanResult, lambda out, one: out.outcomes([one], partial(storage.clean_line, dry_run=False))),
    "stored": (CleanResult, lambda out, one: storage.show_stored(out, [one], dry_run=False)),
    "serve": (ServeResult, lambda out, one: out.outcomes([one], servers.server_line)),
    "plan of a start": (ServeResult, lambda out, one: servers.show_plan(out, [one])),
    "stop": (StopResult, lambda out, one: out.outcomes([one], servers.stop_line, servers.is_left)),
    "processes": (StopResult, lambda out, one: servers.show_processes(out, [one], own=True)),
    "start": (ExtractorState, lambda out, one: out.outcomes([one], extraction.start_line)),
    "end": (RunStatus, lambda out, one: out.outcomes([one], extraction.end_line, extraction.has_failed)),
    "status": (HostStatus, lambda out, one: extraction.show_status(out, [one])),
    "verdict": (VerifyResult, lambda out, one: out.outcomes([one], verify.verdict)),
    "fault": (Fault, lambda out, one: verify.show_faults(out, [("gpu1", one.value)])),
}


@pytest.mark.parametrize("name", SHOWN)
@examples(25)
@given(data=st.data())
def test_every_answer_can_be_shown_without_harm(name: str, data: st.DataObject) -> None:
    model, show = SHOWN[name]
    screen = Screen()
    show(screen, Outcome(HOST, data.draw(values_of(model))))
    assert is_harmless(screen.text)


@examples(60)
@given(values_of(RunStatus))
def test_every_status_has_a_live_line(status: RunStatus) -> None:
    assert extraction.live_line(status).text


@examples(60)
@given(st.lists(st.one_of(values_of(LogLines), values_of(LogNotice)), max_size=4), st.booleans())
def test_log_lines_do_no_harm_and_each_stays_one_line(items: list[LogLines | LogNotice], as_json: bool) -> None:
    seen = io.StringIO()
    printer = LogPrinter([HOST], as_json, seen)
    for item in items:
        printer.item(HOST, item)
    printed = seen.getvalue().split("\n")[:-1]
    assert len(printed) == sum(len(item.lines) if isinstance(item, LogLines) else 1 for item in items)
    assert all(line.isprintable() or "\t" in line for line in printed)
    assert all(map(is_harmless, printed))
    if as_json:
        assert all(json.loads(line)["host"] == "gpu1" for line in printed)
