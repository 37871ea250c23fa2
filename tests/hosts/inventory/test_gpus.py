"""A server's GPUs are chosen in one place, by ordinal or by UUID."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hosts.errors import UsageError
from hosts.inventory.model import Host, Mode, ServerEntry
from hosts.inventory.servers import gpu_ordinals, server_specs

UUID = "GPU-5e3c8b6a-0d5f-4a4b-9d1e-0c6a3d7f2b11"
SLICE = "MIG-7c1f0c2e-3c58-5a7b-8e0a-6f1f0a2b9c3d"


def host(**fields: object) -> Host:
    values: dict[str, object] = {"name": "box", "model": "/m", "modes": {"serve": Mode()}, "tp": 2, "gpus": 8}
    return Host.model_validate({**values, **fields})


@pytest.mark.parametrize("where", ["host", "mode"])
def test_gpus_chosen_a_second_time_in_the_environment_are_refused_with_a_remedy(where: str) -> None:
    env = {"env": {"CUDA_VISIBLE_DEVICES": "2, 3"}}
    box = host(**env) if where == "host" else host(modes={"serve": Mode.model_validate(env)})
    with pytest.raises(UsageError) as caught:
        server_specs(box, "serve")
    assert "CUDA_VISIBLE_DEVICES=2, 3 in `env`, but Roost gives its server the GPUs 0, 1" in caught.value.message
    assert "`servers: [{gpus: [2, 3]}]`" in caught.value.remedy


def test_gpus_chosen_only_in_the_environment_are_kept() -> None:
    (spec,) = server_specs(host(gpus=0, env={"CUDA_VISIBLE_DEVICES": ""}), "serve")
    assert (spec.gpus, spec.env["CUDA_VISIBLE_DEVICES"]) == ([], "")


def test_uuids_of_gpus_and_slices_are_names_of_gpus_and_other_words_are_not() -> None:
    box = host(
        tp=1, servers=[{"name": "a", "gpus": [UUID]}, {"name": "b", "gpus": [SLICE]}, {"name": "c", "gpus": [3]}]
    )
    specs = server_specs(box, "serve")
    assert [spec.gpus for spec in specs] == [[UUID], [SLICE], [3]]
    assert gpu_ordinals(specs[2]) == [3]
    with pytest.raises(UsageError, match="is a UUID, but tuning needs ordinals"):
        gpu_ordinals(specs[0])
    with pytest.raises(ValidationError):
        ServerEntry.model_validate({"gpus": ["0; rm -rf /"]})
