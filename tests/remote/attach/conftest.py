"""Installed copies of SGLang to attach to, and the verbs called in this process."""

from __future__ import annotations

import io
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.attach import patch
from remote.attach.probe import look_at
from remote.attach.verbs import attach, attached, detach
from remote.context import Context
from remote.report import Report
from remote.shared.messages.attach import AttachedRequest, AttachReport, AttachRequest, DetachRequest, Installation
from remote.shared.paths import Workdir
from tests.remote.attach.installs import make_install
from tests.remote.attach.wheels import NoRegistry, unpack

CPU = {"SGLANG_USE_CPU_ENGINE": "1"}


class Host:
    """One host with one copy of SGLang in front on its path."""

    def __init__(self, site: Path, workdir: Path) -> None:
        self.site = site
        self.package = site / "sglang"
        self.context = Context(Workdir(workdir), Report(io.StringIO()))
        self.env = {"PYTHONPATH": str(site)}

    def model(self, name: str = "deepseek_v2") -> Path:
        return self.package / "srt" / "models" / f"{name}.py"

    def attach(self, **fields: object) -> AttachReport:
        request = AttachRequest.model_validate({"attach": "patch", "env": self.env, "check_import": False, **fields})
        return attach(request, self.context)

    def attached(self) -> AttachReport:
        return attached(AttachedRequest(env=self.env), self.context)

    def detach(self, **fields: object) -> AttachReport:
        return detach(DetachRequest.model_validate({"env": self.env, **fields}), self.context)


class Install:
    """A miniature install and the patch upon it, without a process of its own."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.package = site / "sglang"

    def model(self, name: str = "deepseek_v2") -> Path:
        return self.package / "srt" / "models" / f"{name}.py"

    @property
    def installation(self) -> Installation:
        return Installation.model_validate({"python": sys.executable, **look_at(self.package)})

    def attach(self, families: list[str] | None = None, *, dry_run: bool = False) -> list[str]:
        installation = self.installation
        return patch.attach(installation, patch.targets(installation, families), dry_run=dry_run)

    def detach(self, *, dry_run: bool = False) -> list[str]:
        return patch.detach(patch.targets(self.installation), dry_run=dry_run)

    def state(self, family: str = "deepseek") -> str:
        return patch.targets(self.installation, [family])[0].state


@pytest.fixture
def host(tmp_path: Path) -> Install:
    """Right layout, RECORD and version; model files that import without torch."""
    return Install(make_install(tmp_path / "site packages"))


@pytest.fixture
def wheel_host(tmp_path: Path) -> Callable[[str], Host]:
    """A real wheel's files as pip lays them out."""

    def make(version: str) -> Host:
        site = tmp_path / "site-packages"
        try:
            unpack(version, site)
        except NoRegistry as error:
            pytest.skip(str(error))
        return Host(site, tmp_path / "workdir")

    return make


@pytest.fixture
def checkout(tmp_path: Path) -> Host:
    """A second copy of the installed SGLang: model files of its own, links to everything else."""
    installed = Path(sysconfig.get_paths()["purelib"])
    site = tmp_path / "checkout"
    for folder, own in (("sglang", "srt"), ("sglang/srt", "models")):
        (site / folder).mkdir(parents=True)
        for child in (installed / folder).iterdir():
            if child.name != own:
                (site / folder / child.name).symlink_to(child)
    shutil.copytree(installed / "sglang/srt/models", site / "sglang/srt/models")
    for metadata in installed.glob("sglang-*.dist-info"):
        shutil.copytree(metadata, site / metadata.name)
    host = Host(site, tmp_path / "workdir")
    host.env |= CPU
    return host
