"""Findings about a cluster: its login host, and who may run code on Ray. Laptop's side."""

from __future__ import annotations

from urllib.parse import urlsplit

from hosts.doctor.findings import Diagnosis, Finding, green, red, yellow
from hosts.errors import RoostError
from hosts.inventory.clusters import AnyCluster, RayCluster
from hosts.transport.backend import Backend
from remote.shared.messages.jobs import LookRequest, RayLook

OF_NODES = frozenset(
    {"gpus", "driver", "gpu processes", "gpu links", "ram disk", "ports", "port", "servers", "limits", "logins"}
)
"""Subjects that matter only on hosts with servers, so not on a login host."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def of_cluster(diagnosis: Diagnosis, cluster: AnyCluster, backend: Backend) -> Diagnosis:
    """Return the diagnosis of a cluster from its login host's."""
    findings = [finding for finding in diagnosis.findings if finding.subject not in OF_NODES]
    if isinstance(cluster, RayCluster):
        findings.append(_ray(cluster, backend))
    return diagnosis.model_copy(update={"findings": findings})


def _ray(cluster: RayCluster, backend: Backend) -> Finding:
    try:
        seen = backend.call("look", LookRequest(address=cluster.address), RayLook)
    except RoostError as error:
        return red("ray", error.message, error.remedy)
    return judge_ray(cluster.address, seen)


def judge_ray(address: str, seen: RayLook) -> Finding:
    """Return the finding on who may run code on a Ray cluster."""
    if not seen.is_open:
        return green("ray", f"Ray {seen.version} at {address} requires a token")
    beyond = "" if urlsplit(address).hostname in LOOPBACK else f", and {address} is no loopback address"
    return yellow(
        "ray",
        f"Ray {seen.version} requires no token: everybody who can connect to its ports can run code on every node. "
        f"They listen on all "
        f"interfaces of the head and of the nodes, except the dashboard's{beyond}",
        "Let a firewall keep others from Ray's ports, start Ray with RAY_AUTH_MODE=token, and let `login` be the head "
        "node with the dashboard on 127.0.0.1.",
    )
