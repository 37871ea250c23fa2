"""`inv doctor` of a cluster: a login host needs no GPUs, and a Ray that everybody can use is reported."""

from __future__ import annotations

import pytest

from hosts.doctor.clusters import judge_ray
from remote.shared.messages.jobs import RayLook


@pytest.mark.parametrize(
    ("address", "is_open", "level", "words"),
    [
        ("http://127.0.0.1:8265", True, "yellow", "everybody who can connect to its ports can run code"),
        ("http://head:8265", True, "yellow", "http://head:8265 is no loopback address"),
        ("http://head:8265", False, "green", "requires a token"),
    ],
)
def test_a_ray_without_a_token_is_a_warning(address: str, is_open: bool, level: str, words: str) -> None:
    finding = judge_ray(address, RayLook(version="2.60.0", is_open=is_open))
    assert (finding.level, finding.subject) == (level, "ray")
    assert words in finding.text
