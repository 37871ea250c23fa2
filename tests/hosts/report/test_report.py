"""The report of the recorded run: its content, no use of the network, and hosts' text stays text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hosts.commands.report import HostRecord, keep, kept, typed
from hosts.errors import UsageError
from hosts.practice.chromium import INSTALL, document, find_chromium, picture
from hosts.report.page import page
from hosts.report.verdict import bill_of_all, time_spent, verdict
from remote.shared.messages.envelope import Typed
from remote.shared.messages.extract import Counts
from remote.shared.messages.history import Event, Histogram, Point, RunAccount
from remote.shared.trail import Command, Trail
from tests.views import HOSTILE, recorded_records

RUN = "practice-night"
chromium = pytest.mark.skipif(find_chromium() is None, reason=f"there is no Chromium; install it: {INSTALL}")


@pytest.fixture(scope="module")
def recorded() -> str:
    """The page of the recorded run."""
    return page(RUN, recorded_records(), None, [(1.0, "inv report")])


def account(**more: object) -> RunAccount:
    counts = Counts(assigned=10, done=10, tokens_done=1000, bytes_done=10**6)
    return RunAccount.model_validate({"run": RUN, "status": "complete", "counts": counts, **more})


def test_the_verdict_on_the_recorded_run_is_unknown_in_part_because_a_host_was_lost(recorded: str) -> None:
    records = recorded_records()
    assert [record.account is None for record in records] == [False, False, True]
    judged = verdict(records, planned=300)
    assert judged.word == "unknown in part"
    assert "nothing is known about practice3" in judged.sentence
    assert "practice3" in recorded
    for part in ("What happened", "Speed", "Where time went", "Room", "The records", "Versions and flags"):
        assert f"<h2>{part}</h2>" in recorded
    assert "GPU use" not in recorded  # no host had one


@pytest.mark.parametrize(
    ("counts", "planned", "word"),
    [
        ({"assigned": 10, "done": 7, "freed": 3}, 10, "complete"),
        ({"assigned": 10, "done": 9}, 10, "unfinished"),
        ({"assigned": 10, "done": 10}, 12, "unfinished"),
        ({"assigned": 10, "done": 9, "quarantined": 1}, 10, "complete with quarantined records"),
    ],
)
def test_the_verdict_is_computed_from_counts(counts: dict[str, int], planned: int, word: str) -> None:
    records = [HostRecord(host="a", account=account(counts=Counts(**counts)))]
    assert verdict(records, planned).word == word


def test_the_time_spent_is_split_into_prefill_and_waits() -> None:
    values = {"worked": 100.0, "waited.ramdisk": 10.0, "waited.paused": 30.0, "waited.disk": 0.0}
    record = HostRecord(host="a", account=account(), points=[Point(at=1, step=10, values=values)], cost_per_hour=36.0)
    assert time_spent(record) == {"prefill": 60.0, "waiting for RAM disk": 10.0, "paused": 30.0}
    assert bill_of_all([record]).spent == 1.0
    assert bill_of_all([record, HostRecord(host="b")]).spent is None


def test_the_page_uses_no_network(recorded: str) -> None:
    outside = re.sub(r"<script.*?</script>", "", recorded, flags=re.DOTALL)
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!data:)", outside)
    assert "default-src 'none'" in recorded
    assert len(recorded) < 4_000_000


def test_text_from_hosts_stays_text() -> None:
    event = Event(at=1.0, kind="failed", subject="run x", text=HOSTILE)
    hostile = account(causes={HOSTILE: 1}, cause=HOSTILE, versions={HOSTILE: HOSTILE}, commands={"m": [HOSTILE]})
    record = HostRecord(host="a", account=hostile, events=[event], problem=HOSTILE)
    made = page(HOSTILE, [record], None, [(1.0, HOSTILE)])
    assert "<script>alert(1)" not in made
    assert "\x1b" not in made
    assert "\u202e" not in made


def test_a_run_without_history_is_still_reported() -> None:
    record = HostRecord(host="a", account=account(lengths=Histogram(edges=[1, 2], counts=[3])), problem="No history.")
    made = page(RUN, [record], None, [(1.0, "inv report")])
    assert "No history." in made
    assert "<h2>The records</h2>" in made
    nothing = page(RUN, [HostRecord(host="a", problem="It is gone.")], None, [(1.0, "inv report")])
    assert "There is nothing to plot" in nothing


def test_a_destination_keeps_the_data_for_a_report(tmp_path: Path) -> None:
    record = recorded_records()[0]
    assert record.account is not None
    keep(tmp_path, record)
    assert kept(tmp_path, record.account.run) == [record]
    with pytest.raises(UsageError, match="has no data for a report on the run 'other'"):
        kept(tmp_path, "other")
    (tmp_path / "roost" / "report" / "bad.json").write_text(json.dumps({"host": 3}))
    problems = {one.host: one.problem for one in kept(tmp_path, record.account.run)}
    assert "cannot be read" in problems["bad"]


def test_the_report_lists_the_trails_commands_about_the_run(tmp_path: Path) -> None:
    trail = Trail(tmp_path / "trail.jsonl")
    for number, words in enumerate(("inv plan --run other", f"inv plan --run {RUN}", f"inv extract --run={RUN}")):
        Command(trail, Typed(id=str(number), words=words), "me@laptop").end("ok")
    about = [words for _, words in typed(tmp_path / "trail.jsonl", RUN)]
    assert about == [f"inv plan --run {RUN}", f"inv extract --run={RUN}"]
    assert typed(tmp_path / "none.jsonl", RUN) == []


@chromium
def test_the_plots_are_drawn_in_chromium(recorded: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(recorded)
    shown = document(path)
    assert shown.count("bk-Figure") >= 5
    for dark in (False, True):
        target = tmp_path / f"{dark}.png"
        picture(path, target, 800, 600, dark=dark)
        assert target.read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "True.png").read_bytes() != (tmp_path / "False.png").read_bytes()
