"""Finds a run by its name on this host, for every verb that names a run.

Runs on the host; quick to import, for read-only verbs.
"""

from __future__ import annotations

from remote.shared.errors import UsageError
from remote.shared.messages.run import RunIdentity, refuse_other_run
from remote.shared.paths import RunPaths, Workdir
from remote.work import epochs
from remote.work.ledger import Ledger

OTHER_RUN = "Plan under another name with --run; or pull what you need of this host's run, then inv clean it."


def named(workdir: Workdir, run: str) -> RunPaths:
    """Return the folder of a run of this name; raises UsageError if this host has none."""
    paths = workdir.run(run)
    if not paths.root.is_dir():
        known = ", ".join(names(workdir)) or "none"
        raise UsageError(f"There is no run {run!r} on this host.", remedy=f"Runs: {known}.")
    return paths


def known(workdir: Workdir, identity: RunIdentity) -> RunPaths:
    """Return the folder of this run; raises UsageError if this host has no run, or another run, of its name."""
    paths = named(workdir, identity.name)
    refuse_other_run("This host", identity_of(paths), identity, OTHER_RUN)
    return paths


def names(workdir: Workdir) -> list[str]:
    """Return the names of the runs that this host has a folder of."""
    return workdir.run_names()


def identity_of(paths: RunPaths) -> RunIdentity:
    """Return the identity of a folder's run, from its ledger or, before there is one, from its newest assignment.

    Raises UsageError if neither names the run.
    """
    if paths.ledger.exists():
        with Ledger(paths.ledger, to_read=True) as ledger:
            noted = ledger.fact("identity")
        if noted is not None:
            return read_identity(noted, paths)
    if epochs.newest_epoch(paths) is not None:
        return epochs.read_description(epochs.newest(paths)).identity
    raise UsageError(
        f"The folder of the run {paths.root.name!r} on this host does not say which run it is: an older Roost made it.",
        remedy="Remove that run with inv clean, or plan under another name.",
    )


def read_identity(noted: str, paths: RunPaths) -> RunIdentity:
    """Return the identity in a ledger; raises UsageError if this version of Roost cannot read it."""
    try:
        return RunIdentity.model_validate_json(noted)
    except ValueError as error:
        raise UsageError(
            f"The ledger of the run {paths.root.name!r} on this host was begun by an older Roost, which knew no run "
            f"identity.",
            remedy="Remove the run with inv clean, or plan under another name.",
        ) from error


def refuse_older_plan(paths: RunPaths, epoch: int) -> None:
    """Raise UsageError if this host was given a share of a newer plan than the caller's."""
    here = epochs.newest_epoch(paths)
    if here is not None and here > epoch:
        raise UsageError(
            f"This host was given epoch {here} of the run {paths.root.name!r}, but this laptop's plan has epoch "
            f"{epoch}: another laptop has planned since.",
            remedy=f"Take the hosts' newest plan with inv runs --take {paths.root.name}.",
        )
