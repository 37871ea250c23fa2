"""The patch: appends a block to the model file of each family, and restores the files. Host side.

Called by the verbs. Writes only the families' model files in the host's SGLang, each with a copy of its original beside
it (`deepseek_v2.py.roost-original`). A file in an unknown state is never written.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from remote.attach import block
from remote.attach.origin import difference, origin
from remote.attach.version import SUPPORTED_TEXT, supported
from remote.model_families import FAMILIES, Family
from remote.shared.errors import HostError, UsageError
from remote.shared.files import written_aside
from remote.shared.messages.attach import FamilyFile, FileState, Installation

COPY_SUFFIX = ".roost-original"


@dataclass(frozen=True)
class Target:
    """The state of one model file."""

    family: Family
    path: Path
    content: bytes
    state: FileState
    original: bytes = b""
    """The file without a block, if the state is known."""
    problem: str = ""
    diff: str = ""

    @property
    def copy(self) -> Path:
        """The path of the original's copy while the block is in."""
        return self.path.with_name(self.path.name + COPY_SUFFIX)

    def described(self) -> FamilyFile:
        """Return the file's state for the answer."""
        return FamilyFile(
            family=self.family.name,
            path=str(self.path),
            state=self.state,
            digest=block.sha256(self.content) if self.content else "",
            original_digest=block.sha256(self.original) if self.original else "",
            problem=self.problem,
            diff=self.diff,
        )


def targets(installation: Installation, names: list[str] | None = None) -> list[Target]:
    """Return the state of the families' files in this SGLang: of the named families, or of all that it has.

    Raises UsageError for a family that Roost does not know.
    """
    known = {family.name: family for family in FAMILIES}
    unknown = [name for name in names or [] if name not in known]
    if unknown:
        raise UsageError(f"There is no family {unknown[0]!r}.", remedy=f"Families: {', '.join(known)}.")
    found = [inspect(known[name], installation) for name in names or known]
    return found if names else [target for target in found if target.state != "missing"]


def inspect(family: Family, installation: Installation) -> Target:
    """Return the state of a family's file."""
    path = family.file(Path(installation.package))
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Target(family, path, b"", "missing", problem=f"this SGLang has no {path.name}")
    if path.is_symlink():
        problem = f"{path} is a link to {path.resolve()}, which other environments may share"
        return Target(family, path, content, "unknown", problem=problem)
    parts = block.split(content)
    if parts is None and block.BEGIN not in content:
        return _without_block(family, path, content, installation)
    if parts is not None and parts.intact:
        state: FileState = "attached" if parts.current else "outdated"
        return Target(family, path, content, state, parts.above)
    return _unknown(family, path, content, "was edited after Roost's block went in", _kept(path))


def _without_block(family: Family, path: Path, content: bytes, installation: Installation) -> Target:
    expected = origin(path, installation)
    if not expected.digest:
        problem = "is in no wheel's RECORD and in no git checkout, so its original is unknown"
        return _unknown(family, path, content, problem, None)
    if block.sha256(content) == expected.digest:
        return Target(family, path, content, "original", content)
    kept = expected.content or _kept(path)
    original = kept if kept is not None and block.sha256(kept) == expected.digest else None
    return _unknown(family, path, content, f"is not what {expected.source} says was installed", original)


def _kept(path: Path) -> bytes | None:
    copy = path.with_name(path.name + COPY_SUFFIX)
    return copy.read_bytes() if copy.is_file() else None


def _unknown(family: Family, path: Path, content: bytes, problem: str, original: bytes | None) -> Target:
    diff = difference(original, content, path.name) if original is not None else ""
    where = "" if diff else " (no copy of the original is on this host, so no difference can be shown)"
    return Target(family, path, content, "unknown", problem=f"{path} {problem}{where}", diff=diff)


def attach(installation: Installation, found: list[Target], *, dry_run: bool) -> list[str]:
    """Append this payload's block to every file that lacks it; returns the files changed (with `dry_run`: to change).

    Nothing is written unless all files can be written. Raises HostError for an unsupported version, an unknown state or
    a read-only folder.
    """
    _refuse_version(installation)
    _refuse_unknown(found, "patched")
    wanting = [target for target in found if target.state in ("original", "outdated")]
    for target in wanting:
        compile(block.append(target.original), str(target.path), "exec")
    if not dry_run:
        _refuse_read_only(wanting)
        for target in wanting:
            _replace(target.copy, target.original, like=target.path)
            _replace(target.path, block.append(target.original), like=target.path)
    return [str(target.path) for target in wanting]


def detach(found: list[Target], *, dry_run: bool) -> list[str]:
    """Remove the block from every file that has one, which restores the originals byte for byte.

    Raises HostError for an unknown state or a read-only folder, before anything is changed.
    """
    _refuse_unknown(found, "restored")
    holding = [target for target in found if target.state in ("attached", "outdated")]
    if not dry_run:
        _refuse_read_only(holding)
        for target in holding:
            _replace(target.path, target.original, like=target.path)
        for target in found:
            if target.state != "missing":
                target.copy.unlink(missing_ok=True)
    return [str(target.path) for target in holding]


def _refuse_version(installation: Installation) -> None:
    if not supported(installation.version):
        raise HostError(
            f"The patch was never tried on SGLang {installation.version} at {installation.package}"
            f" (only on {SUPPORTED_TEXT}).",
            remedy="Use `attach: plugin` if this SGLang loads plugins, or install one of these versions.",
        )


def _refuse_unknown(found: list[Target], participle: str) -> None:
    for target in found:
        if target.state == "unknown":
            raise HostError(
                f"{target.problem}, and was not {participle}.",
                remedy="Reinstall SGLang, or undo the edit; or use `attach: plugin` if SGLang loads plugins.",
                details={"file": str(target.path), "lines": target.diff.splitlines()},
            )
        if target.state == "missing":
            raise HostError(f"{target.problem.capitalize()}.", remedy="Leave that family out.")


def _refuse_read_only(found: list[Target]) -> None:
    for folder in {target.path.parent for target in found}:
        if not os.access(folder, os.W_OK):
            raise HostError(
                f"This user cannot write to {folder}, so SGLang was not patched.",
                remedy="Use `attach: plugin` if SGLang loads plugins, or log in as the user who installed SGLang.",
            )


def _replace(path: Path, content: bytes, *, like: Path) -> None:
    """Write `path` atomically with the mode and owner of `like`, and remove its bytecode.

    Python compares bytecode with its source by size and whole seconds, so it could miss two changes within a second.
    """
    try:
        seen = like.stat()
        with written_aside(path) as aside:
            aside.write_bytes(content)
            aside.chmod(seen.st_mode & 0o7777)
            if (seen.st_uid, seen.st_gid) != (os.geteuid(), os.getegid()):
                shutil.chown(aside, seen.st_uid, seen.st_gid)
    except OSError as error:
        raise HostError(f"{path} could not be written: {error.strerror}; it is unchanged.") from error
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink(missing_ok=True)
