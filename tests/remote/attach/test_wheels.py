"""The patch over SGLang's real wheels: in, idempotent, valid, dormant, and out without a trace."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.attach import block
from remote.model_families import FAMILIES, Family
from tests.remote.attach.conftest import Host
from tests.remote.attach.wheels import VERSIONS, WITHOUT_PLUGINS

pytestmark = pytest.mark.wheels
each_version = pytest.mark.parametrize("version", VERSIONS)
WheelHost = Callable[[str], Host]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@each_version
def test_attach_appends_one_block_and_detach_leaves_no_trace(version: str, wheel_host: WheelHost) -> None:
    host = wheel_host(version)
    before = tree(host.site)
    report = host.attach()
    assert report.installation.version == version
    assert report.installation.package == str(host.package)
    assert sorted(report.changed) == sorted(str(family.file(host.package)) for family in FAMILIES)
    for family in FAMILIES:
        path = family.file(host.package)
        original = before[str(path.relative_to(host.site))]
        assert path.read_bytes().startswith(original)
        assert path.with_name(path.name + ".roost-original").read_bytes() == original
    assert {file.state for file in host.attached().files} == {"attached"}
    detached = host.detach()
    assert sorted(detached.changed) == sorted(report.changed)
    assert tree(host.site) == before
    assert host.detach().changed == []


@each_version
def test_a_second_attach_writes_nothing(version: str, wheel_host: WheelHost) -> None:
    host = wheel_host(version)
    host.attach()
    inodes = {path: path.stat().st_ino for path in host.model().parent.iterdir()}
    assert host.attach().changed == []
    assert {path: path.stat().st_ino for path in host.model().parent.iterdir()} == inodes


@each_version
def test_the_patched_files_compile_and_end_in_one_guarded_block(version: str, wheel_host: WheelHost) -> None:
    host = wheel_host(version)
    host.attach()
    for family in FAMILIES:
        path = family.file(host.package)
        content = path.read_bytes()
        parts = block.split(content)
        assert parts is not None
        original, patched = ast.parse(parts.above), ast.parse(content)
        compile(patched, str(path), "exec")
        added = patched.body[len(original.body) :]
        assert ast.dump(ast.Module(patched.body[: len(original.body)], [])) == ast.dump(original)
        assert [type(node) for node in added] == [ast.Import, ast.Assign, ast.If]
        guard = added[-1]
        assert isinstance(guard, ast.If)
        assert ast.unparse(guard.test) == "_roost_os.environ.get('SGLANG_HS_DUMP_DIR')"
        assert _names_bound(added) <= _prefixed(_names_bound(added))
        assert not any(name.startswith("_roost") for name in _names_bound(original.body))


def _names_bound(body: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.Module(body, [])):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _prefixed(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("_roost")}


@each_version
def test_the_installed_copy_tells_whether_plugins_reach_the_scheduler(version: str, wheel_host: WheelHost) -> None:
    report = wheel_host(version).attach(attach="auto", dry_run=True)
    expected = "patch" if version in WITHOUT_PLUGINS else "plugin"
    assert (report.choice.way, report.installation.has_plugins) == (expected, expected == "plugin")


@each_version
def test_the_families_hold_the_classes_that_capture_watches(version: str, wheel_host: WheelHost) -> None:
    host = wheel_host(version)
    for family in FAMILIES:
        body = ast.parse(family.file(host.package).read_bytes()).body
        classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
        assert family.model_class in classes
        assert set(family.architectures) <= classes


WRAPPERS = [(family, name, file) for family in FAMILIES for name, file in family.wrappers]


@each_version
@pytest.mark.parametrize(("family", "name", "file"), WRAPPERS, ids=[name for _, name, _ in WRAPPERS])
def test_a_wrapper_builds_its_familys_own_model(
    version: str, wheel_host: WheelHost, family: Family, name: str, file: str
) -> None:
    """So that capturing the family's model captures it too: its file takes a class from the family's module."""
    body = ast.parse((wheel_host(version).package / f"srt/models/{file}.py").read_bytes()).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    taken = {
        alias.name
        for node in body
        if isinstance(node, ast.ImportFrom) and node.module == family.module
        for alias in node.names
    }
    own = {named for named, node in classes.items() if taken & {ast.unparse(base) for base in node.bases}}
    used = {node.id for node in ast.walk(classes[name]) if isinstance(node, ast.Name)}
    assert used & (taken | own) & {family.model_class, *family.architectures, *own}


def test_the_wheels_source_is_what_an_interpreter_with_it_in_front_would_import(wheel_host: WheelHost) -> None:
    host = wheel_host("0.5.9")
    run = subprocess.run(
        [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('sglang').origin)"],
        env={"PYTHONPATH": str(host.site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(run.stdout.strip()).parent == Path(host.attached().installation.package)
