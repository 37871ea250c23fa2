"""How a host is reached, as OpenSSH itself reads the configuration: `ssh -G`, tokens, jump hosts, known_hosts files."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from hosts.errors import AuthenticationError, HostUnreachableError
from hosts.inventory.model import Host
from hosts.transport.openssh import HARDENING, ssh_config
from hosts.transport.settings import Hop, UnknownTokenError, resolve
from hosts.transport.ssh import choose

pytestmark = pytest.mark.processes


@pytest.fixture
def configured(tmp_path: Path) -> Host:
    """`configured` has `tmp_path/config` as its OpenSSH configuration."""
    return Host(name="gpubox", ssh_config=str(tmp_path / "config"), known_hosts=str(tmp_path / "known_hosts"))


def write(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)


def test_aliases_includes_and_match_exec_are_followed(tmp_path: Path, configured: Host) -> None:
    (tmp_path / "more").write_text('Match host gpubox exec "test -e /"\n  Port 2207\n')
    write(tmp_path, f"Include {tmp_path}/mo*\nHost gpubox\n  HostName 10.9.8.7\n  User lab\n")
    hop = resolve(configured).target
    assert (hop.hostname, hop.port, hop.user) == ("10.9.8.7", 2207, "lab")
    assert hop.where == "lab@10.9.8.7:2207"


def test_the_inventory_wins_over_the_configuration(tmp_path: Path, configured: Host) -> None:
    write(tmp_path, "Host *\n  Port 2207\n  User lab\n")
    hop = resolve(configured.model_copy(update={"user": "me", "ssh_port": 23})).target
    assert (hop.port, hop.user) == (23, "me")


def test_with_an_empty_configuration_only_the_inventory_decides(tmp_path: Path, configured: Host) -> None:
    write(tmp_path, "# nothing\n")
    hop = resolve(configured.model_copy(update={"address": "GPU7", "ssh_port": 23})).target
    assert (hop.hostname, hop.port, hop.user) == ("gpu7", 23, getpass.getuser())


def test_jump_hosts_are_hops_in_order_with_their_own_settings(tmp_path: Path, configured: Host) -> None:
    write(
        tmp_path,
        "Host gpubox\n ProxyJump lab@one:2201,two\n IdentityFile ~/gpu\n"
        "Host one\n HostName 10.0.0.1\n ProxyJump zero\nHost two\n HostName 10.0.0.2\n ProxyJump elsewhere\n",
    )
    hops = resolve(configured).hops
    assert [(hop.name, hop.hostname, hop.port) for hop in hops] == [
        ("zero", "zero", 22),
        ("one", "10.0.0.1", 2201),
        ("two", "10.0.0.2", 22),
        ("gpubox", "gpubox", 22),
    ]
    assert [hop.jump for hop in hops] == [True, True, True, False]
    assert hops[1].user == "lab"
    assert hops[3].paths("identityfile") == [Path.home() / "gpu"]


def test_proxyjump_none_means_no_jump_host(tmp_path: Path, configured: Host) -> None:
    write(tmp_path, "Host gpubox\n ProxyJump none\nHost *\n ProxyJump bastion\n")
    assert len(resolve(configured).hops) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Host gpubox\n  HostName\n", "line 2"),
        ("Host gpubox\n  Port abc\n", "Bad port 'abc'"),
        ("Host *\n  ProxyJump bastion\n", "jumphost loop via bastion"),
        ("Bogus yes\n", "Bad configuration option: bogus"),
    ],
)
def test_a_configuration_that_openssh_refuses_gives_its_own_sentence(
    tmp_path: Path, configured: Host, text: str, sentence: str
) -> None:
    write(tmp_path, text)
    with pytest.raises(HostUnreachableError, match=sentence) as caught:
        resolve(configured)
    assert "ssh -G" in caught.value.remedy


def test_known_hosts_files_are_the_configuration_s_unless_the_inventory_names_one(
    tmp_path: Path, configured: Host
) -> None:
    write(tmp_path, 'Host gpubox\n  UserKnownHostsFile "/a folder/one" /two ~/three\n  GlobalKnownHostsFile none\n')
    hop = resolve(configured.model_copy(update={"known_hosts": None})).target
    assert hop.known_hosts_files == (Path("/a folder/one"), Path("/two"), Path.home() / "three")
    assert hop.global_files == ()
    assert resolve(configured).target.known_hosts_files == (tmp_path / "known_hosts",)


def test_tokens_expand_as_in_ssh_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB", "lab7")
    hop = Hop("gpu", "10.0.0.7", "me", 2207, {"proxyjump": ("you@bastion:22",)})
    assert hop.expanded("%h:%p %r %n %% ${LAB} %j %k") == "10.0.0.7:2207 me gpu % lab7 bastion gpu"
    assert len(hop.expanded("%C")) == 40
    for unknown in ("%T", "%", "%H", "${NOT_SET_ANYWHERE}"):
        with pytest.raises(UnknownTokenError):
            hop.expanded(unknown)


def test_an_identity_file_that_does_not_exist_is_named(configured: Host) -> None:
    with pytest.raises(AuthenticationError, match="/no/such/key"):
        resolve(configured.model_copy(update={"identity_file": "/no/such/key"}))


@pytest.mark.parametrize(
    ("text", "openssh", "why"),
    [
        ("", False, "nothing"),
        ("Host *\n ProxyCommand nc %h %p\n", True, "ProxyCommand"),
        ("Host *\n CertificateFile ~/x-cert.pub\n", True, "CertificateFile"),
        ("Host *\n IdentityFile ~/%T\n", True, "%T is not known"),
        ("Host *\n HostKeyAlias k-%h\n", True, "hostkeyalias"),
        ("Host *\n PubkeyAuthentication no\n", True, "PubkeyAuthentication"),
        ("Host *\n ForwardAgent yes\n LocalForward 1 a:2\n HostKeyAlias plain\n", False, "nothing"),
    ],
)
def test_openssh_carries_hosts_that_fabric_cannot_reach(
    tmp_path: Path, configured: Host, monkeypatch: pytest.MonkeyPatch, text: str, openssh: bool, why: str
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    write(tmp_path, text)
    choice = choose(resolve(configured))
    assert (choice.openssh, why in choice.why) == (openssh, True), choice
    wished = choose(resolve(configured.model_copy(update={"ssh": "openssh"})))
    assert wished.openssh


def test_a_certificate_authority_for_another_domain_changes_nothing(tmp_path: Path, configured: Host) -> None:
    authority = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHT7Ms+jNzdBJPF9f+y8ufW83bLSBaTV/RQrDi4HYpyN"
    (tmp_path / "known_hosts").write_text(f"@cert-authority *.corp.example {authority}\n")
    assert not choose(resolve(configured)).openssh
    of_the_domain = configured.model_copy(update={"address": "gpu7.corp.example"})
    assert "@cert-authority" in choose(resolve(of_the_domain)).why


def test_roost_s_own_lines_come_before_the_person_s(tmp_path: Path, configured: Host) -> None:
    write(
        tmp_path,
        "Host *\n ForwardAgent yes\n ForwardX11 yes\n RemoteCommand tmux\n RequestTTY force\n PermitLocalCommand yes\n"
        " LocalCommand touch /tmp/x\n RemoteForward 9 a:9\n ControlMaster auto\n ControlPath /tmp/%C\n",
    )
    options = resolve(configured).target.options
    for keyword in ("forwardagent", "forwardx11", "permitlocalcommand", "requesttty"):
        assert options[keyword][0] in {"no", "false"}, keyword
    assert options["clearallforwardings"] == ("yes",)
    assert options.get("remotecommand", ("none",)) == ("none",)
    assert options.get("controlpath", ("none",)) == ("none",)
    assert ssh_config(configured).splitlines()[1 : 1 + len(HARDENING)] == list(HARDENING)
