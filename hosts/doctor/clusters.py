"""Findings about a cluster: what of its login host matters, and who may run code on Ray. Laptop's side."""

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
"""Subjects that matter where servers run: a login host runs none."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def of_cluster(diagnosis: Diagnosis, cluster: AnyCluster, backend: Backend) -> Diagnosis:
    """Return what a cluster's login host says about the cluster."""
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
    """Judge who may run code on a cluster of Ray."""
    if not seen.is_open:
        return green("ray", f"Ray {seen.version} at {address} asks for a token")
    beyond = "" if urlsplit(address).hostname in LOOPBACK else f", and {address} is no loopback address"
    return yellow(
        "ray",
        f"Ray {seen.version} asks for no token: whoever reaches its ports runs code on every node. They listen on all "
        f"interfaces of the head and of the nodes, except the dashboard's{beyond}",
        "Let a firewall keep others from Ray's ports, start Ray with RAY_AUTH_MODE=token, and let `login` be the head "
        "node with the dashboard on 127.0.0.1.",
    )
