"""Events reach a real command and a real web server, and a failed notification is one sentence."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hosts.errors import HostError, UsageError
from hosts.fleet import Fleet
from hosts.inventory.model import Host, Inventory, Notify
from hosts.notify import Event, NotifyError, check_notify, event_of, notify


def host_with(**ways: str) -> Host:
    return Host(name="gpu1", notify=Notify(**ways))


def event() -> Event:
    return event_of(host_with(), "server main", None, "ready", "main ready on port 8000")


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, object]], list[int]]]:
    """An address, what was posted to it, and the status to answer with."""
    received: list[dict[str, object]] = []
    status = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status[0])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook?secret=s3cr3t", received, status
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_command_gets_the_event_on_stdin_and_no_shell_reads_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "tell me.py"
    script.write_text("import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())")
    out = tmp_path / "$(touch pwned); out"
    notify(host_with(command=f"{sys.executable} '{script}' '{out}'"), event())
    assert json.loads(out.read_text())["message"] == "main ready on port 8000"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([script.name, out.name])


def test_a_webhook_is_sent_the_event(webhook: tuple[str, list[dict[str, object]], list[int]]) -> None:
    address, received, _ = webhook
    failed = event_of(host_with(), "server main", HostError("It died.", remedy="Look."), "ready", "")
    notify(host_with(webhook=address), failed)
    assert received[0]["event"] == "failed"
    assert received[0]["message"] == "It died. Look."


def test_a_refusing_webhook_is_one_sentence_without_its_secret(
    webhook: tuple[str, list[dict[str, object]], list[int]],
) -> None:
    address, _, status = webhook
    status[0] = 403
    with pytest.raises(NotifyError, match="HTTP 403") as caught:
        notify(host_with(webhook=address), event())
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(("command", "said"), [("false", "exit code 1"), ("/no/such/program", "could not be run")])
def test_a_command_that_fails_is_one_sentence(command: str, said: str) -> None:
    with pytest.raises(NotifyError, match=said):
        notify(host_with(command=command), event())


@pytest.mark.parametrize(
    "command",
    [
        "sh -c 'echo cannot reach https://me:s3cr3t-word@hooks/x?token=s3cr3t-word >&2; exit 1'",
        "sh -c 'echo refused: $0 >&2; exit 1' s3cr3t-word",
        "/no/such/program --key=s3cr3t-word",
    ],
)
def test_the_output_of_a_failed_command_shows_none_of_its_secrets(command: str) -> None:
    with pytest.raises(NotifyError) as caught:
        notify(host_with(command=command), event())
    assert "s3cr3t-word" not in str(caught.value)


def test_asking_to_notify_nobody_is_wrong_usage(tmp_path: Path) -> None:
    inventory = Inventory(path=tmp_path, hosts={}, local=Host(name="local"))
    with pytest.raises(UsageError, match="no `notify`"):
        check_notify(Fleet(inventory, [host_with()]))
    with pytest.raises(UsageError, match="cannot be read"):
        check_notify(Fleet(inventory, [host_with(command="'unclosed")]))
