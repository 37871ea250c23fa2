"""The verbs: `python -m remote VERB` looks its function up here and imports that module alone.

A verb is a function `(request: SomeMessage, context: Context) -> SomeMessage`. Its request type is read from
the annotation. It raises RoostError for anything a person should read.
"""

from __future__ import annotations

VERBS: dict[str, str] = {
    "attach": "remote.attach.verbs:attach",
    "attached": "remote.attach.verbs:attached",
    "assign": "remote.data.assign:assign",
    "control": "remote.extract.verbs:control",
    "detach": "remote.attach.verbs:detach",
    "extract": "remote.extract.launch:extract",
    "freed": "remote.extract.verbs:freed",
    "hello": "remote.verbs.hello:hello",
    "logs": "remote.logs.verb:logs",
    "prepare": "remote.data.prepare:prepare",
    "prospect": "remote.data.prospect:prospect",
    "requeue": "remote.extract.verbs:requeue",
    "serve": "remote.servers.serve:serve",
    "servers": "remote.servers.records:servers",
    "shards": "remote.extract.verbs:shards",
    "status": "remote.extract.verbs:status",
    "stop": "remote.servers.stop:stop",
    "supervise": "remote.servers.supervisor:supervise",
}
