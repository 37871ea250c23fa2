"""How one host reaches another for a pull: by options that its own OpenSSH, of whatever version, understands."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hosts.inventory.model import Host
from hosts.pull.sources import _login


def test_a_host_s_own_ssh_forwards_nothing_and_asks_nothing_with_any_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host *\n ForwardAgent yes\n RemoteForward 1234 localhost:1234\n RequestTTY force\n RemoteCommand top\n"
        " ControlMaster auto\n StrictHostKeyChecking no\n BatchMode no\n Ciphers aes256-ctr\n"
    )
    host = Host(name="gpu2", address="10.0.0.2", user="me", ssh_port=2222, connect_timeout=0.2)
    program, *options = _login(host)
    said = subprocess.run(
        [program, "-F", str(config), "-G", *options], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = dict(line.partition(" ")[::2] for line in said)
    assert options[-2:] == ["--", "10.0.0.2"]
    assert (found["hostname"], found["port"], found["user"]) == ("10.0.0.2", "2222", "me")
    assert found["connecttimeout"] == "1"
    assert (found["forwardagent"], found["requesttty"], found["controlmaster"]) == ("no", "false", "false")
    assert (found["stricthostkeychecking"], found["batchmode"], found["clearallforwardings"]) == ("true", "yes", "yes")
    assert found.get("remotecommand", "none") == "none"
    assert found["ciphers"].startswith("aes128-gcm@openssh.com,")
    assert "^" not in found["ciphers"]
