"""Finds the tiny models, and makes missing models. Laptop's side; a process of `.engine` does the work.

Called by the practice fleet, the demo and the tests. Writes only `.practice/models/`, one folder for each model and
version of the code that makes it, so that edited code never gets an old model.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from filelock import FileLock

from hosts.practice.paths import CODE, PracticePaths

RECIPE = ("tiny_model.py", "families.py", "published.py", "weights.py", "tokenizer.py")
_RUN = """import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module("hosts.practice.engine.tiny_model", run_name="__main__", alter_sys=True)
"""
"""Roost's own folder comes last on the path, because the laptop's packages in it must not hide the engine's."""
DEFAULT_FAMILY = "deepseek_v3"
DEFAULT_LAYERS = 6


def tiny_model(
    root: Path, family: str = DEFAULT_FAMILY, *, layers: int = DEFAULT_LAYERS, dtype: str = "float32"
) -> Path:
    """Return the folder of a tiny model. A missing model is made first, which takes some seconds."""
    paths = PracticePaths(root)
    folder = paths.models / f"{family}-{layers}-{dtype}-{_recipe_digest()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not folder.exists():
            command = [str(paths.engine_python), "-c", _RUN, str(CODE), str(folder)]
            options = ["--family", family, "--layers", str(layers), "--dtype", dtype]
            subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return folder


def _recipe_digest() -> str:
    engine = Path(__file__).parent / "engine"
    content = b"".join((engine / name).read_bytes() for name in RECIPE)
    return hashlib.sha256(content).hexdigest()[:12]
