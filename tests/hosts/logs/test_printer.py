"""What `inv logs` prints of lines that a host sent."""

from __future__ import annotations

import io
import json

import pytest

from hosts.console.logs import LogPrinter
from hosts.errors import ConnectionLostError, HostError
from hosts.inventory.model import Host
from remote.shared.messages.logs import LogItem, LogLines, LogNotice, LogPosition, LogSource

GPU1, GPU10 = Host(name="gpu1"), Host(name="gpu10")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(*text: str, server: str = "main") -> LogLines:
    source = LogSource(name=server)
    end = LogPosition(source=source, file=f"{server}_v1.log", inode=1, head="", offset=1)
    return LogLines(source=source, file=end.file, lines=list(text), end=end)


def printed(*items: tuple[Host, LogItem], as_json: bool = False, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    printer = LogPrinter([GPU1, GPU10], as_json, stream)
    for host, item in items:
        printer.item(host, item)
    return stream.getvalue()


def test_lines_follow_their_hosts_name_in_one_column() -> None:
    assert printed((GPU1, lines("one", "two")), (GPU10, lines("three"))) == (
        "gpu1  | one\ngpu1  | two\ngpu10 | three\n"
    )


def test_a_second_log_of_a_host_is_named() -> None:
    text = printed((GPU1, lines("one", server="a")), (GPU1, lines("two", server="b")))
    assert text.splitlines()[1] == "gpu1/b | two"


def test_hosts_have_colours_of_their_own_on_a_terminal_and_none_in_a_pipe() -> None:
    items = ((GPU1, lines("one")), (GPU10, lines("two")))
    first, second = printed(*items, stream=Terminal()).splitlines()
    assert first.startswith("\x1b[")
    assert first[:5] != second[:5]
    assert "\x1b" not in printed(*items)


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ("\x1b]0;title\x07x", r"\x1b]0;title\x07x"),
        ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),
        ("csi \x9b31m", r"csi \x9b31m"),
        ("bidi \u202egnp.exe", r"bidi \u202egnp.exe"),
        ("a\x00b\x7f", r"a\x00b\x7f"),
        ("two\u2028lines", r"two\u2028lines"),
        ("tab\tstays, naïve 雪 too", "tab\tstays, naïve 雪 too"),
    ],
)
@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_control_characters_from_a_host_are_shown_and_never_executed(
    sent: str, seen: str, stream_type: type[io.StringIO]
) -> None:
    text = printed((GPU1, lines(sent)), stream=stream_type())
    assert text.rstrip("\n").endswith(f"{seen}")
    assert text.count("\n") == 1


def test_a_progress_bar_is_shown_as_it_ended() -> None:
    assert printed((GPU1, lines("\rLoading: 0%\rLoading: 50%\rLoading: 100%\r"))) == "gpu1  | Loading: 100%\n"


def test_a_notice_is_no_line_of_the_log() -> None:
    notice = LogNotice(source=LogSource(), text="main_v1.log ended; main_v2.log follows.")
    assert printed((GPU1, notice)) == "gpu1  | -- main_v1.log ended; main_v2.log follows.\n"


def test_json_is_one_object_a_line_with_the_line_as_it_was_written() -> None:
    raw = "\x1b[31mred\r\u2028"
    notice = LogNotice(source=LogSource(), text="rotated")
    first, second = printed((GPU1, lines(raw)), (GPU1, notice), as_json=True).splitlines()
    base = {"host": "gpu1", "source": "main", "kind": "server"}
    assert json.loads(first) == {**base, "file": "main_v1.log", "line": raw}
    assert json.loads(second) == {**base, "notice": "rotated"}


def test_a_lost_connection_is_reported_beside_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    LogPrinter([GPU1], False, stream).lost(GPU1, ConnectionLostError("The connection broke."), 2.0)
    assert stream.getvalue() == ""
    assert capsys.readouterr().err == "gpu1: The connection broke. Trying again in 2 s.\n"


def test_with_json_a_host_that_failed_is_one_object_too() -> None:
    stream = io.StringIO()
    host = Host(name="gpu1", address="192.0.2.1")
    LogPrinter([host], as_json=True, stream=stream).failed(host, HostError("It is gone.", remedy="Look."))
    told = json.loads(stream.getvalue())
    assert told == {"host": "gpu1", "error": {"kind": "host", "message": "It is gone.", "remedy": "Look."}}
    LogPrinter([host], as_json=False, stream=stream).failed(host, HostError("It is gone."))
    assert stream.getvalue().count("\n") == 1
