"""The host's Python imports the attached files: the real SGLang, patched in a copy that comes first on the path."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from remote.attach import patch
from remote.attach.interpreter import Interpreter
from remote.attach.probe import find_installation
from remote.attach.ways import environment
from remote.model_families import MODEL_CLASSES
from remote.shared.errors import HostError
from remote.shared.messages.attach import Way
from tests.remote.attach.conftest import CPU, Host
from tests.remote.attach.wheels import EACH_VERSION, VERSIONS, WITHOUT_PLUGINS, NoRegistry, source, unpack

pytestmark = pytest.mark.wheels

ROOT = Path(__file__).resolve().parents[3]
WITHOUT_IDS = "0.5.9"
FORWARD_BATCH = "sglang/srt/model_executor/forward_batch_info.py"


@pytest.mark.engine
def test_the_copy_in_front_is_patched_and_is_what_python_imports(checkout: Host) -> None:
    installed = Path(sysconfig.get_paths()["purelib"]) / "sglang"
    report = checkout.attach(check_import=True)
    assert report.installation.others == [str(installed)]
    assert report.installation.editable
    assert [(check.file, check.attached) for check in report.checks] == [(str(checkout.model()), True)]
    assert b"roost" not in (installed / "srt/models/deepseek_v2.py").read_bytes()


@pytest.mark.engine
def test_the_plugin_is_seen_by_the_loader_and_edits_nothing(checkout: Host) -> None:
    before = checkout.model().read_bytes()
    report = checkout.attach(attach="plugin", check_import=True)
    assert [check.attached for check in report.checks] == [True]
    assert report.changed == []
    assert checkout.model().read_bytes() == before


@pytest.mark.engine
def test_an_import_that_fails_is_one_sentence_with_its_cause(checkout: Host) -> None:
    checkout.model().write_text("raise RuntimeError('planted')\n")
    with pytest.raises(HostError, match=r"cannot import sglang\.srt\.models\.deepseek_v2: RuntimeError: planted"):
        checkout.attach(attach="plugin", check_import=True)


@pytest.mark.wheels
@pytest.mark.parametrize("way", ["patch", "plugin"])
@pytest.mark.parametrize("version", EACH_VERSION)
def test_a_releases_own_model_classes_are_captured_once_imported(version: str, way: Way, tmp_path: Path) -> None:
    """Real modules, real block or plugin, real capture code; only compiled kernels are stood in for."""
    if way == "plugin" and version in WITHOUT_PLUGINS:
        pytest.skip(f"SGLang {version} loads no plugins")
    try:
        unpack(version, tmp_path, whole=True)
    except NoRegistry as error:
        pytest.skip(str(error))
    env = {**CPU, "PYTHONPATH": str(tmp_path)}
    if way == "patch":
        installation = find_installation(payload=ROOT, env=env)
        patch.attach(installation, patch.targets(installation), dry_run=False)
    env |= environment(way, ROOT, env) | {"SGLANG_HS_DUMP_DIR": str(tmp_path / "dump")}
    question = {"modules": MODEL_CLASSES, "plugins": way == "plugin"}
    answer = Interpreter(ROOT, env).ask("tests.remote.attach.releases:wrapped", question)
    assert answer == {"wrapped": dict.fromkeys(MODEL_CLASSES, True)}


@pytest.mark.wheels
@pytest.mark.parametrize("version", [version for version in VERSIONS if version != WITHOUT_IDS])
def test_a_releases_forward_batch_has_its_requests_ids(version: str) -> None:
    try:
        assert "rids=[req.rid for req in batch.reqs]" in source(version, FORWARD_BATCH)
    except NoRegistry as error:
        pytest.skip(str(error))


@pytest.mark.wheels
def test_a_forward_batch_without_ids_is_given_those_of_its_requests(tmp_path: Path) -> None:
    """Its real class; the worker batch that it is built from still has the requests."""
    try:
        unpack(WITHOUT_IDS, tmp_path, whole=True)
    except NoRegistry as error:
        pytest.skip(str(error))
    assert "reqs=self.reqs" in source(WITHOUT_IDS, "sglang/srt/managers/schedule_batch.py")
    interpreter = Interpreter(ROOT, {**CPU, "PYTHONPATH": str(tmp_path)})
    answer = interpreter.ask("tests.remote.attach.releases:request_ids", {"rids": ["a", "b"]})
    assert answer == {"own": False, "rids": ["a", "b"]}
