"""Who else uses this host: what SGLang leaves open to them decides which settings are refused. Runs on the host."""

from __future__ import annotations

import os

import psutil

FIRST_PERSON, LAST_PERSON = 1000, 60_000_000
"""User ids of people; below are the system's own. Directories such as LDAP give numbers far above 60,000."""
NOBODY = 65_534


def other_people() -> list[str]:
    """Names (or ids) of the people, root and this user aside, who have a process here now."""
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        try:
            user = process.uids().real
            if FIRST_PERSON <= user < LAST_PERSON and user not in (NOBODY, os.geteuid()) and user not in found:
                found[user] = str(process.username())
        except psutil.Error:
            continue
    return sorted(found.values())
