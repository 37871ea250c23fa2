"""The verbs: `python -m remote VERB` looks its function up here and imports that module alone.

A verb is a function `(request: SomeMessage, context: Context) -> SomeMessage`. Its request type is read from
the annotation. It raises RoostError for anything a person should read.
"""

from __future__ import annotations

VERBS: dict[str, str] = {
    "address": "remote.servers.address:address",
    "assign": "remote.data.assign:assign",
    "attach": "remote.attach.verbs:attach",
    "attached": "remote.attach.verbs:attached",
    "bench": "remote.bench.verb:bench",
    "canary": "remote.servers.canary:canary",
    "clean": "remote.servers.clean:clean",
    "compress": "remote.codec.atrest:compress",
    "control": "remote.extract.verbs:control",
    "detach": "remote.attach.verbs:detach",
    "export": "remote.data.export.verb:export",
    "extract": "remote.extract.launch:extract",
    "facts": "remote.facts.verb:facts",
    "fence": "remote.extract.verbs:fence",
    "fetch": "remote.transfer.fetch:fetch",
    "follow": "remote.extract.verbs:follow",
    "forget": "remote.data.forget:forget",
    "freed": "remote.extract.verbs:freed",
    "hello": "remote.verbs.hello:hello",
    "inspect": "remote.data.inspect:inspect",
    "logs": "remote.logs.verb:logs",
    "prepare": "remote.data.prepare:prepare",
    "prospect": "remote.data.prospect:prospect",
    "reopen": "remote.extract.verbs:reopen",
    "requeue": "remote.extract.verbs:requeue",
    "screen": "remote.tune.screen:screen",
    "serve": "remote.servers.serve:serve",
    "servers": "remote.servers.records:servers",
    "shards": "remote.extract.verbs:shards",
    "status": "remote.extract.verbs:status",
    "stop": "remote.servers.stop:stop",
    "supervise": "remote.servers.supervisor:supervise",
    "unpack": "remote.codec.verb:unpack",
    "verify": "remote.data.verify:verify",
}
