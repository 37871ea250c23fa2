"""An inventory of any content is read, or refused with one sentence; its names can be nothing but names."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hosts.errors import InventoryError, UsageError
from hosts.inventory.kept import Kept
from hosts.inventory.load import load_inventory
from hosts.inventory.model import Host
from hosts.inventory.select import select
from hosts.plan.lengths import _npy
from hosts.plan.plan import load
from hosts.transport.openssh import ssh_config
from remote.shared.paths import Workdir, safe_name
from tests.hostile import Maker, examples, json_values, seeds, texts


def inventory_like(seed: int) -> str:
    """Almost an inventory: right keys, any values."""
    maker = Maker(seed)
    choice = maker.random

    def host() -> dict[str, Any]:
        names = choice.sample(list(Host.model_fields), choice.randrange(4))
        return {
            name: maker.of(Host.model_fields[name].annotation) if choice.random() < 0.5 else maker.anything()
            for name in names
        }

    data: dict[str, Any] = {"hosts": {choice.choice(["a", "b", maker.text()]): host() for _ in range(2)}}
    for key in ("defaults", "groups", "local", "modes", "nccl"):
        if choice.random() < 0.3:
            data[key] = choice.choice([host(), maker.anything()])
    return json.dumps(data)


def is_read_or_refused(tmp_path: Path, text: str) -> bool:
    """Load it and choose all hosts: the hosts that it names come, or one sentence that names the file."""
    path = tmp_path / "inventory.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        inventory = load_inventory(path)
        return select(inventory, None, "all") == list(inventory.hosts.values())
    except InventoryError as error:
        return "inventory.yaml" in error.message or "no hosts" in error.message


@examples(60)
@given(seed=seeds)
def test_an_inventory_with_any_values_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    assert is_read_or_refused(tmp_path, inventory_like(seed))


@examples(50)
@given(text=st.one_of(st.text(max_size=60), json_values().map(json.dumps)))
def test_a_file_of_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    assert is_read_or_refused(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "hosts: " + "[" * 3000,
        "hosts: &x {a: *x}",
        "&a [*a]",
        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\n"
        "g: &g [*f,*f,*f,*f,*f,*f,*f,*f]\nhosts: {a: *g}",
        "!!python/object/apply:os.system ['true']",
        "? [a, b]\n: c",
        "hosts: {a: {port: 2001-13-45}}",
        "\x00",
    ],
    ids=["deep", "itself", "itself twice", "a billion laughs", "a call", "a list as key", "no date", "NUL"],
)
def test_traps_of_yaml_are_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    with pytest.raises(InventoryError):
        load_inventory(path)


@examples(100)
@given(texts, texts, texts)
def test_no_path_says_more_to_openssh_than_a_path(address: str, user: str, path: str) -> None:
    try:
        host = Host(name="h", address=address, user=user, identity_file=f"/{path}", known_hosts=f"/{path}")
    except ValidationError:
        return
    lines = ssh_config(host).splitlines()
    assert all(line.split(" ")[0].isalnum() for line in lines)
    assert [line.split(" ")[0] for line in lines].count("UserKnownHostsFile") == 1
    assert not any(part.startswith("-") for part in shlex.split(shlex.join([address, user])))


@examples(100)
@given(texts)
def test_a_name_is_one_path_component_or_refused(name: str) -> None:
    try:
        safe_name(name, "name")
    except UsageError:
        return
    root = Path("/work")
    for path in (Workdir(root).run(name).root, Workdir(root).server(name).root, Kept(root).plan(name)):
        assert path.resolve().is_relative_to(root)
        assert ".." not in path.parts


@examples(50)
@given(content=st.one_of(st.binary(max_size=80), json_values().map(lambda value: json.dumps(value).encode())))
def test_a_plan_file_of_any_content_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        load(path)


@examples(75)
@given(st.one_of(st.binary(max_size=60), st.just(b"(" * 5000), st.just(b"{'descr': '<i4', 'fortran_order': False}")))
def test_lengths_of_any_content_are_refused(header: bytes) -> None:
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with pytest.raises((ValueError, SyntaxError, KeyError, TypeError)):
        _npy(content)
