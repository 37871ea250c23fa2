"""The verbs: `python -m remote VERB` looks its function up here and imports that module alone.

A verb is a function `(request: SomeMessage, context: Context) -> SomeMessage`. Its request type is read from
the annotation. It raises RoostError for anything a person should read.
"""

from __future__ import annotations

VERBS: dict[str, str] = {
    "hello": "remote.verbs.hello:hello",
}
