"""The verbs: `python -m remote VERB` looks its function up here and imports that module alone.

A verb is a function `(request: SomeMessage, context: Context) -> SomeMessage`. Its request type is read from
the annotation. It raises RoostError for anything a person should read.
"""

from __future__ import annotations

CHANGING = frozenset(
    {
        *("assign", "attach", "clean", "compress", "control", "detach", "export", "extract"),
        *("fence", "forget", "freed", "job", "prepare", "reopen", "requeue", "serve", "stop", "unpack"),
    }
)
"""Verbs that leave a line in the host's trail, unless their request says `dry_run`."""

VERBS: dict[str, str] = {
    "account": "remote.history.account:account",
    "address": "remote.servers.probing.address:address",
    "answer": "remote.work.launch:extract",
    "answers": "remote.answer.table:answers",
    "assign": "remote.data.assign:assign",
    "attach": "remote.attach.verbs:attach",
    "attached": "remote.attach.verbs:attached",
    "bench": "remote.bench.verb:bench",
    "cancel": "remote.engines.verbs:cancel",
    "canary": "remote.servers.probing.canary:canary",
    "clean": "remote.storage.clean:clean",
    "compress": "remote.storage.compress:compress",
    "control": "remote.work.verbs:control",
    "detach": "remote.attach.verbs:detach",
    "export": "remote.data.export.verb:export",
    "extract": "remote.work.launch:extract",
    "facts": "remote.facts.verb:facts",
    "fence": "remote.work.verbs:fence",
    "fetch": "remote.transfer.fetch:fetch",
    "follow": "remote.work.verbs:follow",
    "forget": "remote.data.forget:forget",
    "freed": "remote.work.verbs:freed",
    "glance": "remote.history.verbs:glance",
    "hello": "remote.verbs.hello:hello",
    "history": "remote.history.verbs:history",
    "inspect": "remote.data.inspect:inspect",
    "job": "remote.engines.single:job",
    "jobs": "remote.engines.verbs:jobs",
    "lease": "remote.work.moving:lease",
    "leases": "remote.work.moving:leases",
    "logs": "remote.logs.verb:logs",
    "look": "remote.engines.ray.engine:look",
    "pack": "remote.storage.compress:pack",
    "plan": "remote.work.held:plan",
    "prepare": "remote.data.prepare:prepare",
    "probe": "remote.attach.loop:probe",
    "prompts": "remote.data.prompts:prompts",
    "prospect": "remote.data.prospect:prospect",
    "rate": "remote.work.standing:rate",
    "record": "remote.history.start:record",
    "recorder": "remote.history.recorder:recorder",
    "reopen": "remote.work.verbs:reopen",
    "replica": "remote.replica.verb:replica",
    "requeue": "remote.work.verbs:requeue",
    "runs": "remote.work.held:runs",
    "screen": "remote.tune.screen:screen",
    "serve": "remote.servers.lifecycle.serve:serve",
    "servers": "remote.servers.lifecycle.records:servers",
    "shards": "remote.work.verbs:shards",
    "standing": "remote.work.standing:standing",
    "status": "remote.work.verbs:status",
    "stop": "remote.servers.lifecycle.stop:stop",
    "submit": "remote.engines.verbs:submit",
    "supervise": "remote.servers.lifecycle.supervisor:supervise",
    "take": "remote.work.moving:take",
    "trail": "remote.logs.trail:trail",
    "unpack": "remote.storage.unpack:unpack",
    "verify": "remote.data.verify:verify",
}
