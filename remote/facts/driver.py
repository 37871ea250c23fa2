"""The NVIDIA driver's own words: versions and how the GPUs are linked. Host side, read-only."""

from __future__ import annotations

import re
import subprocess

SMI_SECONDS = 30.0
"""nvidia-smi on a box whose driver is sick can hang for ever."""
_VERSIONS = re.compile(r"Driver Version:\s*(\S+).*?CUDA Version:\s*(\S+)", re.DOTALL)
_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def versions() -> tuple[str, str]:
    """Driver and the newest CUDA that it serves; empty without a driver."""
    match = _VERSIONS.search(_smi())
    return (match[1], match[2]) if match else ("", "")


def topology() -> list[str]:
    """Each kind of link between two GPUs, once; empty with one GPU or none."""
    return links(_smi("topo", "-m"))


def links(matrix: str) -> list[str]:
    """The kinds of link in `nvidia-smi topo -m`'s rows of GPUs."""
    found: dict[str, None] = {}
    lines = _ESCAPE.sub("", matrix).splitlines()
    gpus = len(re.findall(r"GPU\d+", lines[0])) if lines else 0
    for line in lines[1:]:
        cells = line.split()
        if cells and re.fullmatch(r"GPU\d+", cells[0]):
            found.update({cell: None for cell in cells[1 : gpus + 1] if _LINK.fullmatch(cell)})
    return list(found)


def _smi(*arguments: str) -> str:
    try:
        answer = subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True,
            text=True,
            timeout=SMI_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout
