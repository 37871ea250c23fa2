"""`clusters:` in the inventory: a cluster is named like a host, and a mistake is named with its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hosts.commands.clusters import cluster_host, order_of
from hosts.commands.jobs import task_of
from hosts.errors import InventoryError, UsageError
from hosts.inventory.clusters import RayCluster, SlurmCluster
from hosts.inventory.load import load_inventory
from hosts.inventory.model import Inventory
from hosts.inventory.select import select
from remote.shared.messages.jobs import RayPool, SlurmArray

SHARED = "/shared/roost"
TEXT = """
defaults: {{python: /opt/sglang/bin/python, model: /models/kimi, layers: [3, 31]}}
hosts:
  login1: {{address: login.example, user: me, ssh_port: 2222, workdir: /home/me/roost}}
clusters:
  h100:
    engine: slurm
    login: login1
    nodes: 8
    workdir: /shared/roost
    partition: gpu
    time: 12:00:00
    exclude: n3
    hold: true
    {more}
"""


def load(folder: Path, more: str = "drain: 10min") -> Inventory:
    path = folder / "inventory.yaml"
    path.write_text(TEXT.format(more=more))
    return load_inventory(path)


def slurm_order(folder: Path, more: str = "drain: 10min") -> SlurmArray:
    order = order_of(*cluster_host(load(folder, more), "h100"))
    assert isinstance(order, SlurmArray)
    return order


def test_a_cluster_is_its_login_host_in_the_shared_folder(tmp_path: Path) -> None:
    inventory = load(tmp_path)
    cluster, host = cluster_host(inventory, "h100")
    assert isinstance(cluster, SlurmCluster)
    assert (host.name, host.address, host.user, host.ssh_port) == ("h100", "login.example", "me", 2222)
    assert (host.workdir, host.model, host.gpus, host.layers) == ("/shared/roost", "/models/kimi", 8, [3, 31])
    assert (cluster.nodes, cluster.drain) == (8, 600.0)
    assert [one.name for one in select(inventory, "h100", None)] == ["h100"]
    assert [one.name for one in select(inventory, None, "all")] == ["login1"]


def test_other_keys_are_sbatch_s_as_they_were_written(tmp_path: Path) -> None:
    options = {"partition": "gpu", "time": "12:00:00", "exclude": "n3", "hold": ""}
    assert slurm_order(tmp_path).options == options


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("pyxis", ["srun", "--ntasks=1", "--container-image=sglang.sqsh", f"--container-mounts={SHARED}:{SHARED}"]),
        ("apptainer", ["apptainer", "exec", "--nv", "--bind", "/shared/roost", "sglang.sqsh"]),
    ],
)  # fmt: skip
def test_a_container_goes_before_the_replica(tmp_path: Path, kind: str, words: list[str]) -> None:
    more = f"container: {{image: sglang.sqsh, kind: {kind}}}"
    assert slurm_order(tmp_path, more).wrap == words


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("login: login2", "login names the unknown host 'login2'"),
        ("nodes: 0", "nodes is 0"),
        ("engine: pbs", "engine is 'pbs'"),
        ("container: {kind: docker, image: x}", "container.kind is 'docker'"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, more: str, sentence: str) -> None:
    path = tmp_path / "inventory.yaml"
    key = more.partition(":")[0]
    lines = [line for line in TEXT.format(more="").splitlines() if not line.strip().startswith(f"{key}:")]
    path.write_text("\n".join([*lines, f"    {more}"]) + "\n")
    with pytest.raises(InventoryError, match=sentence):
        load_inventory(path)


def test_an_unknown_cluster_is_refused_with_the_known_clusters(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no cluster 'a100'"):
        cluster_host(load(tmp_path), "a100")


def test_an_inventory_may_have_clusters_alone(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text("clusters: {lab: {engine: slurm, nodes: 2, workdir: /shared, python: /venv/bin/python}}\n")
    inventory = load_inventory(path)
    assert [one.name for one in select(inventory, "lab", None)] == ["lab"]
    with pytest.raises(UsageError, match="has no hosts besides clusters"):
        select(inventory, None, "all")


RAY = """
defaults: {{python: /opt/sglang/bin/python, model: /models/kimi, layers: [3, 31]}}
hosts:
  head: {{address: head.example, user: me}}
clusters:
  pool:
    engine: ray
    login: head
    workdir: /shared/roost
    {more}
"""


def ray(folder: Path, **own: object) -> Inventory:
    given = {"address": '"http://127.0.0.1:8265"', "nodes": "[2, 16]", **own}
    path = folder / "inventory.yaml"
    path.write_text(RAY.format(more="\n    ".join(f"{key}: {value}" for key, value in given.items())))
    return load_inventory(path)


def test_a_cluster_of_ray_asks_for_a_bundle_a_node(tmp_path: Path) -> None:
    cluster, host = cluster_host(ray(tmp_path, resources="{CPU: 4, rack1: 0.5}"), "pool")
    assert isinstance(cluster, RayCluster)
    order = order_of(cluster, host)
    assert isinstance(order, RayPool)
    assert (host.address, host.workdir, host.gpus) == ("head.example", "/shared/roost", 8)
    assert (order.address, order.least, order.most) == ("http://127.0.0.1:8265", 2, 16)
    assert order.bundle == {"GPU": 8, "CPU": 4, "rack1": 0.5}
    assert order.python == "/opt/sglang/bin/python"


def test_one_number_of_nodes_is_both_bounds(tmp_path: Path) -> None:
    cluster, _ = cluster_host(ray(tmp_path, nodes=8), "pool")
    assert cluster.nodes == [8, 8]


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"address": '"ray://head:10001"'}, "not that of Ray's client"),
        ({"address": '"ftp://head"'}, "write the job server's address as in http://HEAD:8265"),
        ({"nodes": "[4, 2]"}, "the fewest and the most nodes"),
        ({"nodes": "[0, 0]"}, "the fewest and the most nodes"),
        ({"nodes": "[1, 2, 3]"}, "nodes is "),
        ({"resources": "{GPU: 4}"}, "GPUs are given as `gpus_per_node`"),
        ({"gpus_per_node": 0, "resources": "{CPU: 0}"}, "a replica needs GPUs or some of a node's `resources`"),
        ({"partition": "gpu"}, "unknown key 'partition'"),
    ],
)
def test_a_mistake_in_a_cluster_of_ray_is_a_sentence(tmp_path: Path, own: dict[str, object], sentence: str) -> None:
    with pytest.raises(InventoryError, match=re.escape(sentence)):
        ray(tmp_path, **own)


CPU_JOB = "gres: gpu:h100:8\n    gpus_per_task: 2\n    mem: 0\n    cpu: {partition: cpu, cpus_per_task: 32}"


def test_a_job_of_one_verb_asks_for_no_gpus_and_has_its_own_options(tmp_path: Path) -> None:
    order = task_of(*cluster_host(load(tmp_path, CPU_JOB), "h100"))
    assert order.options == {
        "partition": "cpu", "time": "12:00:00", "exclude": "n3", "hold": "", "mem": "0", "cpus-per-task": "32",
    }  # fmt: skip
    assert order.python == "/opt/sglang/bin/python"


def test_a_container_of_a_job_without_gpus_gets_none(tmp_path: Path) -> None:
    image = "container: {kind: apptainer, image: /images/sglang.sif}"
    assert "--nv" not in task_of(*cluster_host(load(tmp_path, image), "h100")).wrap
    assert "--nv" in slurm_order(tmp_path, image).wrap


def test_a_cluster_of_ray_runs_no_verb_as_a_job(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only Slurm runs this as a job"):
        task_of(*cluster_host(ray(tmp_path), "pool"))
