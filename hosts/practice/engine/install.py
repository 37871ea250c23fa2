"""Builds `.engine`, the practice hosts' Python. Runs on the laptop under any Python 3.11+, standard library only.

`make engine` calls it. It writes only inside the venv; a second run with the same requirements changes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHIMS = HERE / "shims"
# Every process of a server imports about 5,000 modules. With Python's default of 700, garbage collection takes a fifth
# of that time.
STARTUP = "import gc; gc.set_threshold(100_000)"
STAMP = "roost-engine.stamp"
# In this order: torch's dependencies are installed, with checked digests, before torch itself.
STEPS: tuple[tuple[Path, tuple[str, ...]], ...] = (
    (HERE / "locked.txt", ("--require-hashes", "--no-deps")),
    (HERE / "requirements-torch.txt", ()),
    (HERE / "requirements-torch-bare.txt", ("--no-deps",)),
)


def install(target: Path) -> bool:
    """Make the venv at `target` match the requirements; return False if it matched already."""
    if (target / STAMP).is_file() and (target / STAMP).read_text() == _digest():
        _link_shims(target)
        return False
    (target / STAMP).unlink(missing_ok=True)
    if not _is_of_this_python(target):
        venv.create(target, with_pip=True, symlinks=True, clear=True)
    for path, options in STEPS:
        print(f"{target.name}: installing {path.name}", flush=True)
        _pip(target, *options, "-r", str(path))
    _link_shims(target)
    _prove(target)
    (target / STAMP).write_text(_digest())
    return True


def _is_of_this_python(target: Path) -> bool:
    """Return whether `target` has a venv, complete or not, of the Python that runs this."""
    python = target / "bin" / "python"
    if not python.exists():
        return False
    told = subprocess.run(
        [str(python), "-c", "import sys; print(sys.version)"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() == sys.version


def _digest() -> str:
    """Return a digest of everything that the venv depends on: the requirements and this Python."""
    content = b"".join(path.read_bytes() for path, _ in STEPS)
    return hashlib.sha256(content + sys.version.encode()).hexdigest() + "\n"


def _pip(target: Path, *arguments: str) -> None:
    """Run pip. Its warnings about dependencies that `--no-deps` leaves out are shown only if pip fails."""
    command = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *arguments], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise subprocess.CalledProcessError(done.returncode, [*command, *arguments])


def _link_shims(target: Path) -> None:
    """Put the shims on the venv's path, import the shim that torchvision needs, and make servers start faster."""
    # The scheme "venv", because Debian's Python would otherwise name folders under /usr/local.
    packages = sysconfig.get_path("purelib", "venv", vars={"base": str(target), "platbase": str(target)})
    Path(packages, "roost-shims.pth").write_text(f"{SHIMS}\nimport roost_torchvision_schema\n{STARTUP}\n")


def _prove(target: Path) -> None:
    """Import the first modules of a server, so that a broken install fails here and not in a server's log."""
    subprocess.run([str(target / "bin" / "python"), "-c", "import transformers, sglang.srt.server_args"], check=True)


def main() -> int:
    """Build the venv named on the command line."""
    parser = argparse.ArgumentParser(description="Build the practice hosts' Python: SGLang on CPU.")
    parser.add_argument("target", type=Path, nargs="?", default=Path(".engine"))
    target = parser.parse_args().target.absolute()
    try:
        changed = install(target)
    except subprocess.CalledProcessError as error:
        print(f"{target} could not be built: `{' '.join(error.cmd[:5])} …` ended with {error.returncode}.")
        return 1
    print(f"{target} is {'ready' if changed else 'up to date'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
