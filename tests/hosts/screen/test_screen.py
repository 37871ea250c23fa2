"""The screen of `inv watch` on the recorded run: its content at 80 and 160 columns, and its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from hosts.errors import HostError
from hosts.screen.app import WatchApp
from hosts.screen.dialogs import Detail, Question
from hosts.series.view import FleetView
from tests.views import HOSTILE, fleet, host, recorded_fleet


class Told:
    """Takes down what the keys ask for."""

    def __init__(self) -> None:
        self.steered: list[tuple[str, str]] = []

    def steer(self, name: str, action: str) -> str:
        self.steered.append((name, action))
        return f"{action}d"

    def tail(self, name: str) -> list[str]:
        if name == "b":
            raise HostError("It cannot be reached.")
        return [f"last line of {name}", HOSTILE]


Act = Callable[[WatchApp, Pilot[None]], Awaitable[None]]


def on_screen(act: Act, size: tuple[int, int] = (160, 44), view: FleetView | None = None) -> Told:
    """Run the app headless, and the act in it."""
    told, shown = Told(), view or recorded_fleet()

    async def run() -> None:
        app = WatchApp(lambda: shown, told)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await act(app, pilot)
        assert app.fault is None

    asyncio.run(run())
    return told


def text(app: WatchApp, selector: str) -> str:
    return str(app.screen.query_one(selector, Static).render())


@pytest.mark.parametrize("width", [80, 160])
def test_every_host_has_a_row_that_fits(width: int) -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        table = app.query_one(DataTable)
        assert [str(table.get_row_at(at)[0]) for at in range(3)] == ["practice1", "practice2", "practice3"]
        assert [str(table.get_row_at(at)[1]) for at in range(1, 3)] == ["paused", "lost"]
        assert table.virtual_size.width <= width
        assert "lost: practice3" in text(app, "#fleet")
        assert "so far" in text(app, "#fleet")
        assert "paused" in text(app, "#events")
        titles = [str(column.label) for column in table.columns.values()]
        assert ("last error" in titles) == (width == 160)

    on_screen(act, (width, 24))


def test_enter_shows_a_hosts_detail_with_its_logs_tail_and_q_goes_back() -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, Detail)
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "last line of practice1" in text(app, "#tail")
        assert "server main: extract ready" in text(app, "#facts")
        await pilot.press("q")
        await pilot.pause()
        assert not isinstance(app.screen, Detail)

    on_screen(act)


def test_a_log_that_cannot_be_read_is_a_sentence_in_its_place() -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("d")
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "It cannot be reached." in text(app, "#tail")

    on_screen(act, view=fleet(host("b")))


def test_pausing_asks_first_and_the_answer_no_changes_nothing() -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        await pilot.pause()
        assert isinstance(app.screen, Question)
        assert "Pause kimi-1 on a?" in text(app, "#question")
        await pilot.press("n")
        await pilot.pause()
        assert not isinstance(app.screen, Question)

    assert on_screen(act, view=fleet(host("a"))).steered == []


def test_the_answer_yes_pauses_a_run_and_resumes_a_paused_run() -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        await pilot.pause()
        await pilot.press("y")
        await app.workers.wait_for_complete()
        await pilot.press("down", "p")
        await pilot.pause()
        await pilot.press("y")
        await app.workers.wait_for_complete()

    paused = host("b")
    assert paused.glance is not None
    paused.glance.reading.runs[0].wished = "pause"
    assert on_screen(act, view=fleet(host("a"), paused)).steered == [("a", "pause"), ("b", "resume")]


def test_a_lost_host_is_not_asked_to_pause() -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        await pilot.pause()
        assert not isinstance(app.screen, Question)

    on_screen(act, view=fleet(host("a", lost=True)))


def test_sorting_brings_the_slowest_host_up_and_keeps_the_cursor_on_its_host() -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        assert app.chosen == "a"
        await pilot.press("s")
        await pilot.pause()
        table = app.query_one(DataTable)
        assert [str(table.get_row_at(at)[0]) for at in range(2)] == ["b", "a"]
        assert app.chosen == "a"

    on_screen(act, view=fleet(host("a", rate=900.0), host("b", rate=5.0)))


def test_a_small_terminal_shows_a_message_until_it_is_enlarged() -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        assert "This terminal has 40 columns" in text(app, "#small")
        assert app.screen.query_one("#hosts").display is False
        await pilot.resize_terminal(100, 30)
        await pilot.pause()
        assert app.screen.query_one("#hosts").display is True

    on_screen(act, (40, 8))


def test_text_from_hosts_is_shown_and_never_executed() -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        shown = text(app, "#events")
        assert "\x1b" not in shown
        assert "[bold]b[/bold]" in shown
        await pilot.press("d")
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "\x1b" not in text(app, "#tail") + text(app, "#facts")

    on_screen(act, view=fleet(host("a", text=HOSTILE)))


def test_two_hundred_hosts_are_drawn() -> None:
    async def act(app: WatchApp, pilot: Pilot[None]) -> None:
        assert app.query_one(DataTable).row_count == 200

    on_screen(act, (80, 24), fleet(*(host(f"gpu{number:03}") for number in range(200))))


def test_an_error_in_a_view_ends_the_screen_and_is_kept() -> None:
    def broken() -> FleetView:
        raise RuntimeError("a thread broke")

    async def run() -> BaseException | None:
        app = WatchApp(broken, Told())
        async with app.run_test() as pilot:
            await pilot.pause()
        return app.fault

    assert isinstance(asyncio.run(run()), RuntimeError)
