"""Attaches capture to a host's SGLang and detaches it; refuses settings under which capture would be wrong. Host side.

A server start calls, in this order: `find_installation`, `choose`, `environment`, `check_flags`, `refusals`.
The verbs `attach`, `attached` and `detach` are in `remote.attach.verbs`.
"""

from __future__ import annotations

from remote.attach.flags import capture_flags, check_flags
from remote.attach.probe import find_installation
from remote.attach.refusals import refusals
from remote.attach.ways import choose, environment

__all__ = ["capture_flags", "check_flags", "choose", "environment", "find_installation", "refusals"]
