"""Builds what a GPU machine without network needs to serve SGLang 0.5.17: one archive of about 36 MB.

    python benchmarks/gpu/payload.py .gpu

Downloads wheels for Python 3.12 on x86-64 Linux (about 500 MB, once: they are kept in `.gpu/wheels`), leaves out what
a text model on an sm_90 GPU with torch 2.11 never loads, and writes `.gpu/pay.tar.xz`. Standard library and pip only;
`strip` must be on the path.
"""

from __future__ import annotations

import fnmatch
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = {"sglang": "sglang==0.5.17", "kernel": "sglang-kernel==0.4.5", "grammar": "xgrammar==0.2.1"}
PLATFORMS = [f"manylinux_2_{number}_x86_64" for number in (5, 12, 17, 24, 26, 27, 28, 31, 34, 35, 39)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]
LEFT_OUT = {
    "sglang": ["sglang/multimodal_gen/*", "sglang/test/*", "sglang/eval/*", "*.cpython-312-*.so"],
    # FlashAttention 3 and MLA kernels are nine tenths of the wheel; the benchmark serves with Triton's attention.
    "kernel": ["sgl_kernel/flash_ops*", "sgl_kernel/flashmla_ops*", "sgl_kernel/infllm_ops*", "sgl_kernel/sm100/*"],
    "grammar": ["*.a"],
}
SERVED = {"__init__", "registry", "utils", "transformers", "deepseek_v2", "deepseek_nextn"}
"""Model modules that are imported, and those below that others import; the rest is disabled by name."""
SERVED |= {f"qwen2{kind}" for kind in ("", "_moe")}
SERVED |= {f"qwen3{kind}" for kind in ("", "_asr", "_moe", "_next", "_omni_moe", "_vl", "_vl_moe")}
SERVED |= {"ernie4", "gpt_oss", "hunyuan", "kimi_k25", "kimi_vl_moonvit", "llama", "llama4", "minimax_m2"}


def build(target: Path) -> Path:
    """Build the archive in `target` and return its path."""
    pay, site = fresh(target / "pay"), fresh(target / "site")
    for name, requirement in PACKAGES.items():
        for wheel in download(target / "wheels" / name, [requirement]):
            unpack(wheel, site if name == "grammar" else pay, LEFT_OUT[name])
    for wheel in download(target / "wheels" / "site", ["-r", str(HERE / "requirements.txt")]):
        unpack(wheel, site, [])
    lift_data(site)
    # 53 MB of debug information.
    subprocess.run(["strip", str(site / "xgrammar" / "libxgrammar_bindings.so")], check=True)
    models = (path.stem for path in (pay / "sglang" / "srt" / "models").glob("*.py"))
    (target / "disabled_archs").write_text(",".join(sorted(set(models) - SERVED)) + "\n")
    archive = target / "pay.tar.xz"
    with tarfile.open(archive, "w:xz", preset=3) as tar:
        for name in ("pay", "site", "disabled_archs"):
            tar.add(target / name, name)
    return archive


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def download(folder: Path, requirements: Sequence[str]) -> list[Path]:
    """Wheels of these requirements without their dependencies; those already there are not fetched again."""
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.glob("*.whl")):
        options = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", "--implementation=cp"]
        options += [f"--platform={platform}" for platform in PLATFORMS]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", str(folder)]
        subprocess.run([*command, *requirements], check=True)
    return sorted(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path, left_out: Sequence[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not any(fnmatch.fnmatch(name, p) for p in left_out)]
        archive.extractall(folder, names)


def lift_data(site: Path) -> None:
    """What an installer would move out of a wheel's `.data` folder."""
    for data in site.glob("*.data"):
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, site, dirs_exist_ok=True)
        shutil.rmtree(data)


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
