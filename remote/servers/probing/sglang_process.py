"""Tells whether a process is an SGLang server, by its executable and argv, never by a pattern over the command line.

Runs on the host, called by `obstacles`. `tail -f sglang.log`, an editor or a grep are no servers.
"""

from __future__ import annotations

from pathlib import PurePath

import psutil

MODULES = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
TITLE = "sglang::"
"""SGLang's ranks and detokenizers begin their process titles with this."""
_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def is_sglang(process: psutil.Process) -> bool:
    """Return whether `process` is a server or one of its ranks; False if this user may not read the process."""
    try:
        return is_sglang_argv(PurePath(process.exe()).name, process.cmdline())
    except (psutil.Error, OSError):
        return False


def is_sglang_argv(executable: str, argv: list[str]) -> bool:
    """Return the same from the executable's file name and the arguments."""
    if not argv or not executable.startswith("python"):
        return False
    if argv[0].startswith(TITLE):
        return True
    module, script, rest = _program(argv[1:])
    if module is not None:
        return module in MODULES or (module in ("sglang", "sglang.cli.main") and rest[:1] == ["serve"])
    if script is None:
        return False
    name = PurePath(script)
    if name.name == "sglang":
        return rest[:1] == ["serve"]
    return name.parts[-2:] == ("sglang", "launch_server.py")


def _program(arguments: list[str]) -> tuple[str | None, str | None, list[str]]:
    """Return the module (`-m`) or the script that a Python runs, and its arguments; neither for `-c` or stdin."""
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        if argument == "-m":
            return (remaining[0] if remaining else None), None, remaining[1:]
        if argument.startswith("-m") and not argument.startswith("--"):
            return argument[2:], None, remaining
        if argument in ("-c", "-"):
            return None, None, []
        if argument in _OPTIONS_WITH_VALUE:
            remaining = remaining[1:]
        elif not argument.startswith("-"):
            return None, argument, remaining
    return None, None, []
