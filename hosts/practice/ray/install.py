"""`make ray`: builds `.ray`, the venv of the practice Ray. No other venv of this clone has Ray's packages."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

LOCKED = Path(__file__).with_name("locked.txt")
STAMP = "roost-ray.stamp"


def install(venv: Path) -> int:
    """Build the venv, unless it already has exactly the locked packages; return pip's exit code."""
    stamp, digest = venv / STAMP, hashlib.sha256(LOCKED.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return 0
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps", "-r", str(LOCKED)]
    code = subprocess.run([str(python), "-m", "pip", "install", *options], check=False).returncode
    if code == 0:
        stamp.write_text(digest)
    return code


if __name__ == "__main__":
    sys.exit(install(Path(sys.argv[1])))
