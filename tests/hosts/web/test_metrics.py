"""The metrics: read by Prometheus' own parser, bounded, and without samples of unknown values."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import requests
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from hosts.series.view import FleetView
from hosts.web.metrics import STATES, FleetCollector, state_of
from tests.hosts.web.conftest import Moving, Served, glance, host, lost

UNITS = ("seconds", "bytes", "ratio", "watts", "celsius", "dollars", "per_second", "requests", "records", "tokens")
WORDS = ("_up", "_ready", "_state", "_restarts")


def samples(text: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(text)
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value for family in families for sample in family.samples
    }


def test_prometheus_can_read_the_metrics(start: Callable[..., Served], moving: Moving) -> None:
    moving.hosts = [host("gpu1", 25), lost("gpu2")]
    found = samples(requests.get(f"{start(metrics=True).address}/metrics", timeout=10).text)
    assert found["roost_host_up", "gpu1"] == 1
    assert found["roost_host_up", "gpu2"] == 0
    assert found["roost_run_records", "done", "gpu1", "kimi-1"] == 25
    assert found["roost_run_records", "gpu1", "kimi-1", "open"] == 75
    assert found["roost_gpu_utilization_ratio", "0", "gpu1"] == pytest.approx(0.97)
    assert found["roost_server_ready", "extract", "gpu1", "main"] == 1
    assert found["roost_run_state", "gpu1", "kimi-1", "running"] == 1
    assert sum(value for key, value in found.items() if key[0] == "roost_run_state") == 1


def test_a_request_for_openmetrics_gets_openmetrics(start: Callable[..., Served]) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = requests.get(f"{start(metrics=True).address}/metrics", headers=accept, timeout=10)
    assert "openmetrics" in answer.headers["Content-Type"]
    families = list(open_metrics(answer.text))  # type: ignore[no-untyped-call]
    assert {family.name for family in families} >= {"roost_host_up", "roost_run_tokens"}


def test_a_lost_host_has_no_outdated_numbers(moving: Moving) -> None:
    moving.hosts = [lost("gpu2")]
    registry = CollectorRegistry()
    registry.register(FleetCollector(moving.view))
    names = {key[0] for key in samples(generate_latest(registry).decode())}
    assert names == {"roost_host_up", "roost_host_last_seen_timestamp_seconds"}


def test_names_carry_their_unit_and_the_number_of_samples_is_bounded() -> None:
    fleet = FleetView(time.time(), [host(f"gpu{number}") for number in range(200)])
    families = list(FleetCollector(lambda: fleet).collect())
    for family in families:
        assert re.fullmatch(r"roost_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        assert family.name.endswith((*UNITS, *WORDS)), family.name
    assert sum(len(family.samples) for family in families) < 200 * 50


@pytest.mark.parametrize(
    ("word", "state"), [("draining 12", "draining"), ("failed: no", "failed"), ("\x1b[3", "other")]
)
def test_a_runs_word_is_one_of_a_few_states(word: str, state: str) -> None:
    assert state_of(glance(1, word).reading.runs[0]) == state
    assert state in (*STATES, "other")
