"""The rows of `inv doctor` about SSH."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.doctor.network import connection
from hosts.inventory.model import Host
from hosts.transport.settings import resolve

pytestmark = pytest.mark.processes


def test_the_library_that_carries_a_host_is_shown_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    config = tmp_path / "config"
    config.write_text("Host gpu\n User lab\n ProxyJump bastion\nHost odd\n User lab\n ProxyCommand nc %h %p\n")
    plain = Host(name="gpu", ssh_config=str(config), known_hosts=str(tmp_path / "known_hosts"))
    [row] = connection(resolve(plain))
    assert row.level == "green"
    assert row.text.startswith("Fabric to lab@gpu:22 through ")
    [row] = connection(resolve(plain.model_copy(update={"address": "odd"})))
    assert row.text.startswith("OpenSSH ")
    assert row.text.endswith("to lab@odd:22: ProxyCommand is set")


def test_a_known_hosts_line_that_is_skipped_is_named(tmp_path: Path) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text("\ngithub.com ssh-rsa AAAA!cut\n")
    rows = list(connection(resolve(Host(name="gpu", ssh_config="/no/config", known_hosts=str(known_hosts)))))
    assert [row.level for row in rows] == ["green", "yellow"]
    assert f"{known_hosts} line 2 is skipped" in rows[1].text
