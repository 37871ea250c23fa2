"""Finds the run that a name means on this host, for every verb that names a run.

Runs on the host; quick to import, for read-only verbs.
"""

from __future__ import annotations

from remote.shared.errors import UsageError
from remote.shared.messages.run import RunIdentity, refuse_other_run
from remote.shared.paths import RunPaths, Workdir
from remote.work import epochs
from remote.work.ledger import Ledger

OTHER_RUN = "Plan under a name of its own; or pull what you need of the run that is here, and inv clean it."


def named(workdir: Workdir, run: str) -> RunPaths:
    """Return the folder of a run of this name; raises UsageError if there is none here."""
    paths = workdir.run(run)
    if not paths.root.is_dir():
        known = ", ".join(names(workdir)) or "none"
        raise UsageError(f"There is no run {run!r} here.", remedy=f"Runs: {known}.")
    return paths


def known(workdir: Workdir, identity: RunIdentity) -> RunPaths:
    """Return the folder of this run; raises UsageError if it is not here, or if another run has its name."""
    paths = named(workdir, identity.name)
    refuse_other_run("This host", identity_of(paths), identity, OTHER_RUN)
    return paths


def names(workdir: Workdir) -> list[str]:
    """Return the names of the runs that this host has a folder of."""
    return workdir.run_names()


def identity_of(paths: RunPaths) -> RunIdentity:
    """Return the run whose records this folder holds, from its ledger or, before there is one, its newest assignment.

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
        f"The folder of the run {paths.root.name!r} here does not say which run it is: an older Roost made it.",
        remedy="Remove it with inv clean, or plan under another name.",
    )


def read_identity(noted: str, paths: RunPaths) -> RunIdentity:
    """Return the identity in a ledger; raises UsageError if this version of Roost cannot read it."""
    try:
        return RunIdentity.model_validate_json(noted)
    except ValueError as error:
        raise UsageError(
            f"The ledger of the run {paths.root.name!r} here was begun by a Roost that knew no run identity.",
            remedy="Remove the run with inv clean, or plan under another name.",
        ) from error


def refuse_older_plan(paths: RunPaths, epoch: int) -> None:
    """Raise UsageError if this host was given a share of a newer plan than the caller's."""
    here = epochs.newest_epoch(paths)
    if here is not None and here > epoch:
        raise UsageError(
            f"This host was given epoch {here} of the run {paths.root.name!r}, and this plan is of epoch {epoch}: "
            "somebody has planned on elsewhere.",
            remedy=f"Take the hosts' newest plan with inv runs --take {paths.root.name}.",
        )
