"""The child process of `interpreter.Interpreter.ask`: `python -m remote.attach.child MODULE:FUNCTION`.

Runs under the host's Python in a server's environment. Reads a JSON object, calls the function with it, and prints the
result as one JSON line with a mark, so that it is found among the output of imported modules.
"""

from __future__ import annotations

import importlib
import json
import sys

from remote.attach.interpreter import MARK


def main(target: str) -> None:
    """Answer one question."""
    module, _, function = target.partition(":")
    answer = getattr(importlib.import_module(module), function)(json.load(sys.stdin))
    print(f"\n{MARK}{json.dumps(answer, default=str)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
