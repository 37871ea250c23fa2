"""The verb `facts`: everything `inv doctor` judges, gathered on the host. Read-only."""

from __future__ import annotations

import getpass
import platform
import socket
import sys
import time
from importlib import metadata
from pathlib import Path

import psutil

from remote.attach.probe import find_installation
from remote.context import Context
from remote.errors import HostError
from remote.facts import driver, system
from remote.messages.attach import Installation
from remote.messages.facts import Facts, FactsRequest, GpuFact, ModelFact
from remote.servers import model as models
from remote.servers.gpu import gpus
from remote.servers.holders import port_holders

PACKAGES = (
    "sglang",
    "torch",
    "transformers",
    "safetensors",
    "psutil",
    "aiohttp",
    "orjson",
    "pydantic",
    "xxhash",
    "numpy",
)
"""What a host's Python needs for the verbs and for serving."""


def facts(request: FactsRequest, context: Context) -> Facts:
    """Look at the host; what cannot be seen stays empty and is judged on the laptop."""
    installation, problem = _sglang(request, context)
    memory = psutil.virtual_memory()
    driver_version, cuda = driver.versions()
    return Facts(
        hostname=socket.gethostname(),
        kernel=platform.release(),
        in_container=system.in_container(),
        user=getpass.getuser(),
        python=sys.executable,
        python_version=platform.python_version(),
        packages=_packages(),
        sglang=installation,
        sglang_problem=problem,
        gpus=_gpus(),
        driver=driver_version,
        cuda=cuda,
        topology=driver.topology(),
        model=None if request.model is None else _model(request.model),
        disk=system.space(context.workdir.root),
        ram_disk=system.space(Path(request.dump_dir)),
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        cores=psutil.cpu_count() or 1,
        cpu_has_aes=system.cpu_has_aes(),
        open_files=system.open_files(),
        max_startups=system.max_startups(),
        tools=system.tools(),
        taken_ports={port: holders[0].describe() for port in request.ports if (holders := port_holders(port))},
        clock_at=time.time(),
    )


def _sglang(request: FactsRequest, context: Context) -> tuple[Installation | None, str]:
    try:
        return find_installation(payload=context.payload, env=request.env), ""
    except HostError as error:
        return None, error.message


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpus() -> list[GpuFact]:
    return [
        GpuFact(
            index=gpu.index,
            name=gpu.name,
            total_bytes=gpu.total_bytes,
            used_bytes=gpu.used_bytes,
            processes=gpu.processes,
        )
        for gpu in gpus()
    ]


def _model(path: str) -> ModelFact:
    try:
        config = models.check_model(path)
        return ModelFact(
            path=path,
            architecture=(config.get("architectures") or [""])[0],
            layers=models.depth(config),
            hidden_size=models.hidden_size(config),
        )
    except HostError as error:
        return ModelFact(path=path, problem=error.message)
