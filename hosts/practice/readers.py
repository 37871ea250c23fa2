"""The trainers' own packages, which open the files that Roost writes, each in a small venv of its own.

Laptop's side, called by `make readers`, the demo and tests; also imported inside `.engine`. The packages' pinned
versions exclude each other, so each needs its own venv. A venv uses torch, transformers and datasets of `.engine` and
adds only the reader's own wheels, so making it takes seconds. Writes only `.readers/`.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from hosts.errors import HostError
from hosts.practice.paths import PracticePaths, practice_root

STAMP = "roost-reader.stamp"


@dataclass(frozen=True)
class Reader:
    """A trainer's package: its wheels without dependencies, and an import that fails if the package does not work."""

    packages: tuple[str, ...]
    proof: str


READERS: dict[str, Reader] = {
    "speculators-0.9.0": Reader(
        ("speculators==0.9.0", "hs-connectors==0.9.0"), "from speculators.train.data import ArrowDataset"
    ),
    "speculators-0.7.0.1": Reader(
        ("speculators==0.7.0.1",), "from speculators.train.data import ArrowDataset, SampleFileDataset"
    ),
    "specforge-0.2.0": Reader(
        ("specforge==0.2.0",), "from specforge.runtime.data_plane.offline_reader import OfflineManifestReader"
    ),
    "modelopt-0.47.0": Reader(
        ("nvidia-modelopt==0.47.0", "omegaconf>=2.3", "antlr4-python3-runtime==4.9.3", "pulp<4", "scipy"),
        "from modelopt.torch.speculative.eagle.utils import OfflineSupervisedDataset",
    ),
}


def reader_python(name: str, root: Path | None = None) -> Path:
    """Return the Python in which the reader `name` (a key of READERS) can be imported, making its venv if need be.

    Raises HostError if `.engine` is missing or the packages cannot be installed.
    """
    paths = PracticePaths(root or practice_root())
    if not paths.engine_python.exists():
        raise HostError(
            f"The readers use torch from {paths.engine_python}, which does not exist.", remedy="Run make engine."
        )
    folder = paths.readers / name
    paths.readers.mkdir(exist_ok=True)
    with FileLock(paths.readers / f".{name}.lock"):
        borrowed = _site_packages(paths.engine_python)
        stamp = _digest(READERS[name], borrowed)
        if not (folder / STAMP).is_file() or (folder / STAMP).read_text() != stamp:
            _build(folder, READERS[name], paths.engine_python, borrowed)
            (folder / STAMP).write_text(stamp)
    return folder / "bin" / "python"


def _build(folder: Path, reader: Reader, engine_python: Path, borrowed: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _run([str(engine_python), "-m", "venv", "--without-pip", str(folder)])
    own = _site_packages(folder / "bin" / "python")
    # addsitedir instead of a plain path, because the .pth file of `.engine` (its shims) must be read too.
    (own / "zz-borrowed.pth").write_text(f"import site; site.addsitedir({str(borrowed)!r})\n")
    install = [str(engine_python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*install, "--no-deps", "--target", str(own), *reader.packages])
    _run([str(folder / "bin" / "python"), "-W", "ignore", "-c", reader.proof])


def _site_packages(python: Path) -> Path:
    """Return the venv's folder of packages, without starting its Python."""
    (found,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
    return found.resolve()


def _digest(reader: Reader, borrowed: Path) -> str:
    content = "\n".join([*reader.packages, reader.proof, str(borrowed)])
    return hashlib.sha256(content.encode()).hexdigest() + "\n"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise HostError(f"A reader's venv could not be built: `{' '.join(command[:4])} …` said: {said}")


if __name__ == "__main__":
    for reader_name in READERS:
        print(f"{reader_name}: {reader_python(reader_name)}", flush=True)
