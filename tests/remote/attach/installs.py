"""A miniature SGLang in the layout that pip leaves: for states that a real wheel would only make slower to build."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

MODULES = ("deepseek_v2", "llama", "qwen3", "qwen3_moe")


def make_install(site: Path, version: str = "0.5.10.post1", *, plugins: bool = False) -> Path:
    """Write the package and its metadata below `site` and return `site`."""
    files = {f"sglang/srt/models/{name}.py": f'"""{name}"""\nEntryClass = []\n' for name in MODULES}
    files |= {f"sglang/{folder}__init__.py": "" for folder in ("", "srt/", "srt/models/", "srt/managers/")}
    files["sglang/_version.py"] = f"__version__ = version = '{version}'\n"
    files["sglang/srt/managers/scheduler.py"] = "load_plugins()\n" if plugins else "pass\n"
    if plugins:
        files["sglang/srt/plugins/__init__.py"] = ""
    metadata = f"sglang-{version}.dist-info"
    files[f"{metadata}/METADATA"] = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    rows = [f"{name},sha256={_digest(text)},{len(text)}" for name, text in files.items()]
    (site / metadata / "RECORD").write_text("\n".join([*rows, f"{metadata}/RECORD,,"]) + "\n")
    return site


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
