"""`inv watch --web` and `inv metrics` against a real sshd: the printed address, the served content, and Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from hosts.practice.ports import free_port
from tests.fleet.conftest import SshHost, write_inventory

pytestmark = [pytest.mark.ssh]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(private_sshd: SshHost, tmp_path: Path, clone: Path) -> Iterator[Start]:
    inventory = write_inventory(tmp_path, private_sshd, "~/web")
    running: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        typed = [str(clone / ".venv/bin/inv"), *words, "--host", "box", "--inventory", str(inventory)]
        running.append(subprocess.Popen(typed, cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None, process.stderr and process.stderr.read()
    return found[0]


def ended(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    return err


def test_the_page_of_a_real_host_is_served_until_ctrl_c(start: Start) -> None:
    process = start("watch", "--web")
    page = address(process)
    assert "Roost" in requests.get(page, timeout=30).text
    with requests.get(f"{page}events", stream=True, timeout=60) as events:
        states = (json.loads(line[6:]) for line in events.iter_lines(chunk_size=1) if line)
        row = next(state["hosts"][0] for state in states if state["hosts"][0]["heard"] != "never")
    assert (row["name"], row["lost"]) == ("box", False)
    assert "nothing can be changed" in ended(process)


def test_metrics_of_a_real_host_are_served_until_ctrl_c(start: Start) -> None:
    process = start("metrics", "--listen", f"127.0.0.1:{free_port()}")
    served = address(process)
    while True:
        text = requests.get(f"{served}/metrics", timeout=30).text
        found = {sample.name: sample.value for family in _families(text) for sample in family.samples}
        if found["roost_host_up"] == 1:
            break
    assert found["roost_host_last_seen_timestamp_seconds"] > 0
    ended(process)


def _families(text: str) -> list[Any]:
    return list(text_string_to_metric_families(text))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("metrics", "--listen", "9109"), "is not ADDRESS:PORT"),
        (("metrics", "--listen", "127.0.0.1:99999"), "is not ADDRESS:PORT"),
        (("metrics", "--listen", "203.0.113.7:9109"), "Roost cannot listen on 203.0.113.7 port 9109"),
        (("watch", "--web", "--port", "-1"), "Roost cannot listen on 127.0.0.1 port -1"),
    ],
)
def test_an_address_that_cannot_be_bound_is_one_sentence(start: Start, words: tuple[str, ...], sentence: str) -> None:
    process = start(*words)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert sentence in err
    assert "Traceback" not in err
