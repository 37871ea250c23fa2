"""The probe reads every family's loop in every release, and names a similar family for an unknown model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.attach.loop import SHAPES, Models, probe
from remote.attach.refusals import unserved
from remote.model_families import FAMILIES, REFUSED, nearest
from remote.shared.errors import HostError
from remote.shared.messages.attach import ProbeReport, ProbeRequest
from tests.remote.attach.conftest import Host, Install
from tests.remote.attach.wheels import VERSIONS

WheelHost = Callable[[str], Host]


@pytest.mark.wheels
@pytest.mark.parametrize("version", VERSIONS)
def test_every_family_s_loop_has_a_shape_that_capture_reads(version: str, wheel_host: WheelHost) -> None:
    models = Models(wheel_host(version).package)
    for family in FAMILIES:
        for name in family.served:
            loop = models.loop_of(name)
            assert loop is not None, name
            assert loop.shape in SHAPES, (name, loop)


@pytest.fixture
def probed(host: Install, tmp_path: Path) -> Callable[[str, str], ProbeReport]:
    """`probed("FooForCausalLM", source)` is what the probe says of a model whose file has this source."""
    models = host.package / "srt" / "models"
    (models / "llama.py").write_text(LLAMA)
    context = Host(host.site, tmp_path / "workdir").context

    def ask(name: str, source: str) -> ProbeReport:
        (models / "foo.py").write_text(source)
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
        return probe(ProbeRequest(model=str(tmp_path), env={"PYTHONPATH": str(host.site)}), context)

    return ask


LLAMA = """
class LlamaModel(Module):
    def forward(self, positions, hidden_states, forward_batch):
        residual = None
        for i in range(len(self.layers)):
            layer = self.layers[i]
            hidden_states, residual = layer(positions, hidden_states, forward_batch, residual)
        return self.norm(hidden_states, residual)


class LlamaForCausalLM(Module):
    def __init__(self, config):
        self.model = LlamaModel(config)
"""


def test_an_unknown_model_with_a_known_loop_is_reported_with_the_similar_family(
    probed: Callable[[str, str], ProbeReport],
) -> None:
    report = probed("FooForCausalLM", LLAMA.replace("Llama", "Foo"))
    assert (report.served, report.model_class, report.near) == ("", "FooModel", ["llama"])
    assert (report.module, report.sglang) == ("sglang.srt.models.foo", "0.5.10.post1")
    assert report.shape == SHAPES["sum"]


def test_a_class_that_takes_another_file_s_model_is_followed_there(probed: Callable[[str, str], ProbeReport]) -> None:
    source = "from sglang.srt.models.llama import LlamaForCausalLM\nclass BarForCausalLM(LlamaForCausalLM):\n    pass\n"
    assert probed("BarForCausalLM", source).module == "sglang.srt.models.llama"


def test_an_unknown_loop_is_reported(probed: Callable[[str, str], ProbeReport]) -> None:
    strange = LLAMA.replace("Llama", "Foo").replace("hidden_states, residual = layer", "streams, gates = layer")
    report = probed("FooForCausalLM", strange)
    assert (report.model_class, report.shape, report.near) == ("FooModel", "", [])


def test_a_model_that_sglang_lacks_is_reported(probed: Callable[[str, str], ProbeReport]) -> None:
    report = probed("BazForCausalLM", LLAMA.replace("Llama", "Foo"))
    assert (report.architecture, report.module, report.near) == ("BazForCausalLM", "", [])


def test_a_folder_without_a_config_is_one_sentence(host: Install, tmp_path: Path) -> None:
    context = Host(host.site, tmp_path / "workdir").context
    with pytest.raises(HostError, match=r"config\.json cannot be read.*Set `model`"):
        probe(ProbeRequest(model=str(tmp_path / "none"), env={"PYTHONPATH": str(host.site)}), context)


def test_an_unserved_architecture_is_refused_with_its_reason_or_its_neighbours() -> None:
    assert unserved("Llama4ForCausalLM").startswith("Llama4ForCausalLM is not captured: SGLang 0.5.17 computes")
    said = unserved("Qwen3OtherForCausalLM")
    assert said.startswith("no capture is written for Qwen3OtherForCausalLM; the nearest that are served: Qwen3")
    assert "`inv attach --probe`" in said
    assert unserved("").endswith("its config.json names no architecture")
    assert nearest("T5ForConditionalGeneration") == nearest("T5ForConditionalGeneration")
    assert not REFUSED.keys() & {name for family in FAMILIES for name in family.served}
