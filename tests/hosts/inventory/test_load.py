"""A correct inventory loads with its defaults merged; an error names its place and the correction."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.errors import InventoryError, UsageError
from hosts.inventory.document import text_of
from hosts.inventory.load import load_inventory
from hosts.inventory.model import Inventory
from hosts.inventory.select import select
from hosts.inventory.servers import flag_arguments, server_specs

CHECKED_IN = Path(__file__).parents[3] / "inventory.yaml"


def load(tmp_path: Path, text: str) -> Inventory:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    return load_inventory(path)


def test_the_checked_in_example_gives_two_boxes_ready_to_extract() -> None:
    inventory = load_inventory(CHECKED_IN)
    assert [host.name for host in select(inventory, None, "all")] == ["gpu1", "gpu2"]
    (spec,) = server_specs(inventory.hosts["gpu1"], "extract")
    assert (spec.tp, spec.gpus, spec.port) == (8, list(range(8)), 8000)
    assert spec.capture is not None
    assert spec.capture.layers == [3, 31, 59]
    assert spec.env["NCCL_BUFFSIZE"] == "16777216"
    assert "--disable-radix-cache" in spec.flags
    (production,) = server_specs(inventory.hosts["gpu1"], "serve")
    assert production.capture is None
    assert "--disable-cuda-graph" not in production.flags


def test_a_host_overrides_one_key_of_a_shared_mapping_and_keeps_the_rest(tmp_path: Path) -> None:
    inventory = load(
        tmp_path,
        """
nccl: {NCCL_PROTO: LL, NCCL_ALGO: Ring}
modes: {extract: {capture: true, flags: {mem-fraction-static: 0.88, trust-remote-code: true}}}
defaults: {model: /m, layers: [1], gpus: 1, tp: 1}
hosts:
  a: {nccl: {NCCL_ALGO: Tree}, modes: {extract: {flags: {mem-fraction-static: 0.8}}}}
  b:
""",
    )
    (a,) = server_specs(inventory.hosts["a"], "extract")
    (b,) = server_specs(inventory.hosts["b"], "extract")
    assert a.env == {"NCCL_PROTO": "LL", "NCCL_ALGO": "Tree"}
    assert a.flags == ["--mem-fraction-static", "0.8", "--trust-remote-code"]
    assert b.env["NCCL_ALGO"] == "Ring"


def test_several_servers_on_a_host_get_different_ports_and_dump_directories(tmp_path: Path) -> None:
    inventory = load(
        tmp_path,
        """
modes: {extract: {capture: true}}
defaults: {model: /m, layers: [1], tp: 1, dump_high_water: 10GiB}
hosts:
  a: {servers: [{name: x, gpus: [0]}, {name: y, gpus: [1], port: 9000}]}
""",
    )
    first, second = server_specs(inventory.hosts["a"], "extract")
    assert (first.port, second.port) == (8000, 9000)
    assert first.capture is not None
    assert second.capture is not None
    assert first.capture.dump_dir != second.capture.dump_dir
    assert first.capture.high_water_bytes + second.capture.high_water_bytes == 10 << 30


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts: {a: {prot: 8000}}", "line 1: unknown key 'prot'; did you mean 'port'?"),
        ("defaults:\n  tp: 8\n  prot: 8000\nhosts: {a: {}}", "line 3: unknown key 'prot'; did you mean 'port'?"),
        ("hosts:\n  a:\n    port: eight", "line 3: port is 'eight'"),
        ("defaults: {port: 70000}\nhosts: {a: {}}", "line 1: port is 70000"),
        ("hosts:\n  a:\n    layers: [5, 3]", "line 3: layers is [5, 3]: layers are boundaries in rising order"),
        ("host: {a: {}}", "line 1: unknown key 'host'; did you mean 'hosts'?"),
        ("hosts: {}", "no hosts are listed"),
        ("hosts: {a: {}, a: {}}", "line 1: 'a' is given twice"),
        ("hosts: {a: {}}\ngroups: {g: [a, bb]}", "line 2: group 'g' names the unknown host 'bb'"),
        ("hosts: {a: {}}\ngroups: {a: [a]}", "line 2: 'a' names a group and a host"),
        ("hosts: [a, b]", "line 1: 'hosts' must be a mapping"),
        ("hosts:\n  a: {x: 1", "line 2"),
        ("hosts: {'a b; rm': {}}", "a host's name may only have letters"),
        ("hosts: {a: {address: -oProxyCommand=x}}", "must not start with '-'"),
        ("hosts: {a: {workdir: relative}}", "workdir must be an absolute path"),
        (
            "modes: {extract: {flag: {x: 1}}}\nhosts: {a: {}}",
            "line 1: unknown key 'flag'; did you mean 'flags'?",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line_and_the_nearest_right_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InventoryError) as raised:
        load(tmp_path, text)
    assert said in str(raised.value)
    assert "inventory.yaml" in str(raised.value)


@pytest.mark.parametrize("flag", ["api-key", "--api_key", "admin-api-key", "api-k", "ssl-keyfile-password"])
def test_a_secret_among_the_flags_is_refused_and_not_repeated(tmp_path: Path, flag: str) -> None:
    text = f"hosts: {{a: {{}}}}\nmodes:\n  serve:\n    flags:\n      tp-size: 8\n      {flag}: s3cret\n"
    with pytest.raises(InventoryError, match=r"inventory\.yaml line 6: the flag --.* would show its secret") as raised:
        load(tmp_path, text)
    assert "s3cret" not in str(raised.value)


def test_a_flag_that_only_begins_like_a_secret_flag_is_accepted(tmp_path: Path) -> None:
    inventory = load(tmp_path, "hosts: {a: {}}\nmodes: {serve: {flags: {ssl-keyfile: /key.pem, api-key: false}}}")
    assert inventory.hosts["a"].modes["serve"].flags == {"ssl-keyfile": "/key.pem", "api-key": False}


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="could not be read: No such file"):
        load_inventory(tmp_path / "none.yaml")


FLEET = "groups: {east: [a, b]}\nhosts: {a: {}, b: {}, c: {}}"


@pytest.mark.parametrize(
    ("host", "hosts", "names"),
    [
        ("a", None, ["a"]),
        (None, "c,a", ["a", "c"]),
        (None, "all", ["a", "b", "c"]),
        (None, "east", ["a", "b"]),
        ("east", "c,a", ["a", "b", "c"]),
        (None, "local,a", ["a", "local"]),
    ],
)
def test_hosts_are_chosen_by_name_group_and_all(
    tmp_path: Path, host: str | None, hosts: str | None, names: list[str]
) -> None:
    assert [chosen.name for chosen in select(load(tmp_path, FLEET), host, hosts)] == names


@pytest.mark.parametrize(
    ("hosts", "said"), [("eas", "Did you mean 'east'?"), ("zzzz", "hosts a, b, c"), (None, "No host was named")]
)
def test_an_unknown_host_is_refused_with_the_known_hosts(tmp_path: Path, hosts: str | None, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        select(load(tmp_path, FLEET), None, hosts)
    assert said in str(raised.value)


def test_flags_become_arguments_in_the_order_written() -> None:
    flags = {"tp-size": 8, "trust_remote_code": True, "off": False, "ids": [1, 2]}
    assert flag_arguments(flags) == ["--tp-size", "8", "--trust-remote-code", "--ids", "1", "2"]  # type: ignore[arg-type]


def test_a_secret_comes_from_the_environment_or_is_reported_missing_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = load(tmp_path, "modes: {serve: {}}\ndefaults: {model: /m, secrets: [HF_TOKEN]}\nhosts: {a: {}}")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(UsageError, match="HF_TOKEN"):
        server_specs(inventory.hosts["a"], "serve")
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    (spec,) = server_specs(inventory.hosts["a"], "serve")
    assert spec.env["HF_TOKEN"] == "s3cret"


def test_an_unquoted_word_or_time_stays_the_text_that_was_written(tmp_path: Path) -> None:
    env = (
        load(tmp_path, "hosts: {a: {env: {SWITCH: off, ANSWER: no, LIMIT: '01:30:00', SPAN: 01:30:00}}}").hosts["a"].env
    )
    assert env == {"SWITCH": "off", "ANSWER": "no", "LIMIT": "01:30:00", "SPAN": "01:30:00"}


@pytest.mark.parametrize("value", ["off", "yes", "~", "1e3", "0x10", "2026-01-31", "- x", "a: b", "", " ", "12:30:00"])
def test_a_written_inventory_is_read_as_the_same_text(tmp_path: Path, value: str) -> None:
    written = text_of({"hosts": {"a": {"env": {"VALUE": value}}}})
    assert load(tmp_path, written).hosts["a"].env == {"VALUE": value}


@pytest.mark.parametrize(
    "typed", ["1.20", "12.10", "1:30", "0x10", "010", "0.00001", "off", "no", "1_000", "2026-01-31", "1e3"]
)
def test_values_of_the_environment_and_of_addresses_are_as_typed(tmp_path: Path, typed: str) -> None:
    text = (
        f"modes: {{serve: {{env: {{A: {typed}}}}}}}\nnccl: {{B: {typed}}}\nhosts: {{a: {{model: /m, user: {typed}}}}}"
    )
    host = load(tmp_path, text).hosts["a"]
    (spec,) = server_specs(host, "serve")
    assert (spec.env["A"], spec.env["B"], host.user) == (typed, typed, typed)


@pytest.mark.parametrize(
    "typed", ["1.20", "12.10", "1:30", "0x10", "010", "0.00001", "1_000", "0.88", "16", "off", "no", "1e3"]
)
def test_values_of_flags_are_as_typed(tmp_path: Path, typed: str) -> None:
    text = f"modes: {{serve: {{flags: {{one: {typed}, two: [{typed}, 1]}}}}}}\nhosts: {{a: {{model: /m}}}}"
    (spec,) = server_specs(load(tmp_path, text).hosts["a"], "serve")
    plain = typed.strip("'")
    assert spec.flags == ["--one", plain, "--two", plain, "1"]


@pytest.mark.parametrize(("key", "typed"), [("port", "022"), ("ssh_port", "0x16"), ("tp", "010"), ("ssh_port", "022")])
def test_a_number_that_yaml_reads_as_another_number_is_refused(tmp_path: Path, key: str, typed: str) -> None:
    with pytest.raises(
        InventoryError, match=rf"line 3: {key} is {typed}, which YAML reads as a different value.*quote the text"
    ):
        load(tmp_path, f"hosts:\n  a:\n    {key}: {typed}\n")


def test_numbers_and_switches_keep_their_types(tmp_path: Path) -> None:
    host = load(
        tmp_path,
        "modes: {serve: {restart: yes, capture: off, env: {no: 1}}}\n"
        "hosts: {a: {parity_rate: 0.00001, ready_timeout: 90.50, port: 8001, dump_high_water: 1024}}",
    ).hosts["a"]
    assert (host.modes["serve"].restart, host.modes["serve"].capture, host.modes["serve"].env) == (
        True,
        False,
        {"no": "1"},
    )
    assert (host.parity_rate, host.ready_timeout, host.port, host.dump_high_water) == (0.00001, 90.5, 8001, 1024)


def test_an_address_that_looks_like_a_number_is_as_typed(tmp_path: Path) -> None:
    assert load(tmp_path, "hosts: {a: {address: 12.10}}").hosts["a"].address == "12.10"
