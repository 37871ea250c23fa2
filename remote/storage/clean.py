"""The verb `clean`: removes old runs, payloads and logs from a host's disk unless they are in use or not yet pulled.

Runs on the host, called by `inv clean`. Removes only items below this workdir, and this workdir's old logs in a
server's `log_dir`. A link is removed without its target, and the target is named.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from remote.context import Context
from remote.lock import host_lock
from remote.shared.errors import UsageError
from remote.shared.files import ASIDE
from remote.shared.messages.clean import CleanRequest, CleanResult, Stored
from remote.shared.words import counted
from remote.storage.disk import Found, find_stored


def clean(request: CleanRequest, context: Context) -> CleanResult:
    """Remove old items, or the named items; with `dry_run`, only list them and the bytes that this would free.

    Raises UsageError for a name that matches nothing on this host.
    """
    if request.dry_run:
        return CleanResult(stored=_decided(request, find_stored(context)))
    with host_lock(context, "clean", wait=request.wait_for_lock):
        stored = _decided(request, find_stored(context))
        going = [item for item in stored if not item.kept]
        for item in going:
            context.report.progress(f"removing {item.kind} {item.name}")
            _remove(Path(item.path))
        return CleanResult(stored=stored, removed_bytes=sum(item.size_bytes for item in going))


def _decided(request: CleanRequest, found: list[Found]) -> list[Stored]:
    unknown = set(request.names) - {item.name for item in found}
    if unknown:
        raise UsageError(
            f"This host has no run, payload or server called {sorted(unknown)[0]!r}.",
            remedy="`inv clean --dry-run` lists runs, payloads and servers.",
        )
    stored = [item.stored(_kept(request, item)) for item in found]
    if not request.names:
        stored = [_young(item, request.older_than_seconds) for item in stored]
    return sorted(stored, key=lambda item: item.size_bytes, reverse=True)


def _kept(request: CleanRequest, item: Found) -> str:
    """Return why an item must stay at any age; "" if it may be removed."""
    if request.names and item.name not in request.names:
        return "not named"
    if item.reason:
        return item.reason
    named_and_forced = item.name in request.names and request.force
    if item.unpulled and not named_and_forced:
        return f"{counted(item.unpulled, 'record')} that no pull has freed: name the run and add --force"
    return ""


def _young(item: Stored, older_than_seconds: float) -> Stored:
    if item.kept or item.age_seconds >= older_than_seconds:
        return item
    return item.model_copy(update={"kept": "changed recently"})


def _remove(path: Path) -> None:
    """Rename the item, then remove it, so that an interrupted removal never leaves half a run under the run's name.

    Links inside are not followed; if the item itself is a link, only the link is removed.
    """
    aside = path if path.name.startswith(ASIDE) else path.with_name(f"{ASIDE}{os.getpid()}-{path.name}")
    if aside != path:
        path.rename(aside)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()
