"""Keeps the secrets of a cluster's servers in a file of their own: `replicas.json` and the jobs' scripts have none.

The login host writes the file when it submits the run, and removes it when the run's jobs are cancelled. Replicas read
it when they start their servers; the replica that finds the run over removes it. Only the run's user can read the file.
"""

from __future__ import annotations

import json

from remote.shared.errors import HostError
from remote.shared.files import read_own, write_whole
from remote.shared.messages.replica import ReplicaSpec
from remote.shared.paths import RunPaths


def put_aside(paths: RunPaths, spec: ReplicaSpec) -> ReplicaSpec:
    """Write the spec's secrets to the round's file of secrets, and return the spec without them."""
    values = {name: server.env[name] for server in spec.servers for name in server.secrets}
    if values:
        write_whole(paths.secrets, json.dumps(values).encode())
    else:
        paths.secrets.unlink(missing_ok=True)
    bare = [
        server.model_copy(update={"env": {name: server.env[name] for name in server.env if name not in server.secrets}})
        for server in spec.servers
    ]
    return spec.model_copy(update={"servers": bare})


def put_back(paths: RunPaths, spec: ReplicaSpec) -> ReplicaSpec:
    """Return the spec with its secrets; raises HostError if they are not there."""
    if not any(server.secrets for server in spec.servers):
        return spec
    try:
        values: dict[str, str] = json.loads(read_own(paths.secrets))
        servers = [
            server.model_copy(update={"env": server.env | {name: values[name] for name in server.secrets}})
            for server in spec.servers
        ]
    except (FileNotFoundError, ValueError, LookupError) as error:
        raise HostError(
            f"The secrets of the run's servers are not in {paths.secrets}.",
            remedy="`inv stop --cluster` and then `inv extract --cluster` write them again.",
        ) from error
    return spec.model_copy(update={"servers": servers})
