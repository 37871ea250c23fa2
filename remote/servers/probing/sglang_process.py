"""Is this process an SGLang server? By its executable and its argv, never by a pattern over the command line.

Runs on the host, called by `obstacles`. Pure functions over argv: `tail -f sglang.log`, an editor and a grep are none.
"""

from __future__ import annotations

from pathlib import PurePath

import psutil

MODULES = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
TITLE = "sglang::"
"""SGLang's ranks and detokenizers call themselves so (setproctitle)."""
_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def is_sglang(process: psutil.Process) -> bool:
    """Whether `process` is a server or one of its ranks; False for what this user may not look at."""
    try:
        return is_sglang_argv(PurePath(process.exe()).name, process.cmdline())
    except (psutil.Error, OSError):
        return False


def is_sglang_argv(executable: str, argv: list[str]) -> bool:
    """The same from the executable's file name and the arguments."""
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
    """What a Python runs: a module (`-m`), or a script, and its arguments; neither with `-c` or on stdin."""
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
