"""The verbs `attach`, `attached` and `detach`. They run on the host, called by `inv deploy|attach|attached|detach`.

`attach` and `detach` write only where the patch does, under the host's lock; `attached` is read-only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from remote.attach import patch
from remote.attach.check import check_import
from remote.attach.interpreter import Interpreter
from remote.attach.probe import find_installation
from remote.attach.ways import choose, environment
from remote.context import Context
from remote.lock import host_lock
from remote.model_families import FAMILIES
from remote.servers.lifecycle import records
from remote.shared.errors import HostError
from remote.shared.messages.attach import (
    AttachedRequest,
    AttachReport,
    AttachRequest,
    Choice,
    DetachRequest,
    Installation,
    ModuleCheck,
    ServerCapture,
)


def attach(request: AttachRequest, context: Context) -> AttachReport:
    """Attach capture to the host's SGLang unless it is attached already; with `dry_run`, only say what would change.

    Raises HostError for a way that this SGLang does not have, a file in an unknown state, a read-only install, or if
    Python imports another module than the patched one.
    """
    if request.dry_run:
        return _attach(request, context)
    with host_lock(context, "attach", wait=request.wait_for_lock):
        return _attach(request, context)


def _attach(request: AttachRequest, context: Context) -> AttachReport:
    installation = find_installation(payload=context.payload, env=request.env)
    choice = choose(request.attach, installation)
    changed: list[str] = []
    if choice.way == "patch":
        found = patch.targets(installation, request.families)
        changed = patch.attach(installation, found, dry_run=request.dry_run)
        if changed and not request.dry_run:  # its fingerprint has changed
            installation = find_installation(payload=context.payload, env=request.env)
    checks = []
    if request.check_import and not request.dry_run:
        checks = _checks(installation, choice, request.env, context)
        _refuse_absent(checks, installation)
    return _report(installation, choice, context, changed, checks)


def attached(request: AttachedRequest, context: Context) -> AttachReport:
    """Report the state of capture in the files, in an import, and in the running servers."""
    installation = find_installation(payload=context.payload, env=request.env)
    choice = standing(installation)
    checks = _checks(installation, choice, request.env, context) if request.check_import else []
    return _report(installation, choice, context, [], checks)


def detach(request: DetachRequest, context: Context) -> AttachReport:
    """Restore the original model files, byte for byte; with `dry_run`, say which.

    The plugin leaves nothing to remove: a server loads it only if its environment names the plugin's folder.
    """
    installation = find_installation(payload=context.payload, env=request.env)
    if request.dry_run:
        changed = patch.detach(patch.targets(installation), dry_run=True)
    else:
        with host_lock(context, "detach", wait=request.wait_for_lock):
            changed = patch.detach(patch.targets(installation), dry_run=False)
    return _report(installation, standing(installation), context, changed, [])


def standing(installation: Installation) -> Choice:
    """Return the way in which capture is attached now: the patch if a file has the block."""
    patched = [target for target in patch.targets(installation) if target.state in ("attached", "outdated")]
    if patched:
        return Choice(way="patch", reason=f"{len(patched)} model files carry Roost's block")
    if installation.has_plugins:
        return Choice(way="plugin", reason="no file carries Roost's block, and this SGLang loads plugins")
    return Choice(way="patch", reason="this SGLang loads no plugins, and no file carries Roost's block")


def _checks(installation: Installation, choice: Choice, env: Mapping[str, str], context: Context) -> list[ModuleCheck]:
    """Import the first family's module that this SGLang has, in a server's environment."""
    context.report.progress(f"checking SGLang {installation.version} with {installation.python}")
    added = environment(choice.way, context.payload, {**os.environ, **env})
    interpreter = Interpreter(
        context.payload,
        {**env, **added},
        installation.python,
        cache=context.workdir.sglang_cache,
        fingerprint=installation.fingerprint,
    )
    patched = {target.family.name for target in patch.targets(installation) if target.state == "attached"}
    present = [family for family in FAMILIES if choice.way == "plugin" or family.name in patched]
    return [check_import(family, choice.way, interpreter) for family in present[:1]]


def _refuse_absent(checks: list[ModuleCheck], installation: Installation) -> None:
    for check in checks:
        if not check.attached:
            others = ", ".join(installation.others) or "none"
            raise HostError(
                f"{check.module} is imported from {check.file} without capture: {check.problem}.",
                remedy=f"Check `python` and `env` in the inventory; other copies of SGLang here: {others}.",
            )


def _report(
    installation: Installation, choice: Choice, context: Context, changed: list[str], checks: list[ModuleCheck]
) -> AttachReport:
    return AttachReport(
        installation=installation,
        choice=choice,
        files=[target.described() for target in patch.targets(installation)],
        changed=changed,
        checks=checks,
        servers=_servers(context),
    )


def _servers(context: Context) -> list[ServerCapture]:
    """Return for every running server whether it captures, and from which payload."""
    found = []
    for name in records.names(context.workdir):
        state = records.load(context.workdir.server(name))
        if state is None or not records.report(state).alive:
            continue
        capture = state.capture
        found.append(
            ServerCapture(
                server=name,
                way=capture.attach if capture else None,
                payload=capture.payload if capture else "",
                current=capture is not None and capture.payload == context.payload.name,
            )
        )
    return found
