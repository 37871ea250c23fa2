"""Flags and refusals against the parsers of real SGLang releases; no server is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote.attach.flags import capture_flags, check_flags
from remote.attach.interpreter import Interpreter
from remote.attach.refusals import RULES, Rule, refusals
from remote.model_families import FAMILIES
from remote.shared.errors import UsageError
from remote.shared.messages.attach import CheckedFlags
from tests.remote.attach.tables import PAGE, flags_cells, table_row
from tests.remote.attach.wheels import EACH_VERSION, NoRegistry, unpack

pytestmark = pytest.mark.wheels

ROOT = Path(__file__).resolve().parents[3]
CPU = {"SGLANG_USE_CPU_ENGINE": "1"}
MODEL = ["--model-path=/models/any"]
DEEPSEEK = {"architectures": ["DeepseekV3ForCausalLM"]}
WITHOUT_SWITCH = "0.5.9"
"""SGLang turns all-reduce fusion on by itself there, and has no flag against it."""
NEW_GRAPH_FLAGS = ["--cuda-graph-backend-decode=disabled", "--cuda-graph-backend-prefill=disabled"]
OLD_GRAPH_FLAGS = {
    "0.5.9": ["--disable-cuda-graph"],
    "0.5.10.post1": ["--disable-cuda-graph", "--disable-piecewise-cuda-graph"],
}
Answers = list[dict[str, Any]]


def line(*flags: str, capture: bool = True) -> dict[str, object]:
    return {"flags": [*MODEL, *flags], "capture": capture}


def asked(lines: list[dict[str, object]], env: dict[str, str], *, tolerant: bool) -> Answers:
    interpreter = Interpreter(ROOT, {**CPU, **env})
    answer = interpreter.ask("tests.remote.attach.releases:parse_all", {"lines": lines, "tolerant": tolerant})
    answers: Answers = answer["answers"]
    return answers


def checked(version: str, answer: dict[str, Any]) -> CheckedFlags:
    return CheckedFlags(sglang=version, **answer)


def names(found: CheckedFlags, env: dict[str, str] | None = None, model: dict[str, Any] | None = None) -> set[str]:
    return {refusal.name for refusal in refusals(found, model or DEEPSEEK, env)}


@pytest.fixture
def parsed(tmp_path: Path) -> Callable[[str, list[dict[str, object]]], Answers]:
    def parse(version: str, lines: list[dict[str, object]]) -> Answers:
        try:
            unpack(version, tmp_path / "site", whole=True)
        except NoRegistry as error:
            pytest.skip(str(error))
        return asked(lines, {"PYTHONPATH": str(tmp_path / "site")}, tolerant=True)

    return parse


@pytest.mark.wheels
@pytest.mark.parametrize("version", EACH_VERSION)
def test_every_refusal_can_occur_alone_and_captures_own_flags_cause_none(
    version: str, parsed: Callable[[str, list[dict[str, object]]], Answers]
) -> None:
    trials = [(rule, example) for rule in RULES for example in rule.examples]
    lines = [line(), line("--tp-size=8"), line("--tp-size=8", "--dp-size=8", "--enable-dp-attention")]
    lines += [line(*example, capture=bool(example)) for _rule, example in trials]
    lines += [line("--disable-cuda-graph", "--disable-radix-cache")]
    clean, tensor_parallel, attention_dp, *provoked, legacy = parsed(version, lines)

    assert table_row(flags_cells(version, clean["added"])) in PAGE.read_text()
    graph_flags = [flag for flag in clean["added"] if "graph" in flag]
    assert graph_flags == OLD_GRAPH_FLAGS.get(version, NEW_GRAPH_FLAGS)
    assert not {"--disable-radix-cache", "--disable-cuda-graph", *NEW_GRAPH_FLAGS} & set(legacy["added"])
    assert names(checked(version, legacy)) == set()
    assert names(checked(version, clean)) == set()
    assert names(checked(version, attention_dp)) == set()
    fused = {"allreduce-fusion"} if version == WITHOUT_SWITCH else set()
    assert names(checked(version, tensor_parallel)) == fused
    assert names(checked(version, tensor_parallel), {"SGLANG_IS_FLASHINFER_AVAILABLE": "false"}) == set()

    caught: dict[str, set[str]] = {}
    for (rule, _example), answer in zip(trials, provoked, strict=True):
        if "wrong" not in answer and rule.name not in caught:
            caught[rule.name] = names(checked(version, answer))
    untold = {rule.name for rule in RULES if rule.examples} - caught.keys()
    assert untold <= {"split-prefill", "diffusion-decoding", "context-parallel"}, "this SGLang has no flag for these"
    assert caught.pop("radix-cache") >= {"radix-cache"}
    assert caught == {name: {name} for name in caught}


@pytest.mark.engine
def test_the_installed_parser_names_the_nearest_flag_and_a_wrong_value() -> None:
    def check(*flags: str) -> CheckedFlags:
        return check_flags([*MODEL, *flags], version="0.5.23", payload=ROOT, capture=True, env=CPU)

    with pytest.raises(UsageError) as unknown:
        check("--disable-radix-cash")
    assert str(unknown.value) == (
        "SGLang 0.5.23 has no flag --disable-radix-cash. The nearest flag that it has is --disable-radix-cache."
    )
    with pytest.raises(UsageError, match=r"argument --tp-size.*: invalid int value: 'eight'"):
        check("--tp-size=eight")
    found = check("--disable-cuda-graph", "--disable-radix-cache")
    assert found.added == ["--enforce-disable-flashinfer-allreduce-fusion"]
    assert found.flags == [*MODEL, "--disable-cuda-graph", "--disable-radix-cache", *found.added]


@pytest.mark.engine
def test_a_config_file_is_read_as_the_launcher_reads_it(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("enable-mixed-chunk: true\ndisable-radix-cache: true\n")
    found = check_flags([*MODEL, "--config", str(config)], version="0.5.23", payload=ROOT, capture=True, env=CPU)
    assert names(found) == {"mixed-chunk"}
    assert "--disable-radix-cache" not in found.added
    with pytest.raises(UsageError, match="write --config and FILE as two"):
        check_flags([*MODEL, f"--config={config}"], version="0.5.23", payload=ROOT, capture=True, env=CPU)


def situation(**values: object) -> CheckedFlags:
    """What a parser would have said, as far as the rules look."""
    clean: dict[str, object] = {"disable_radix_cache": True, "tp_size": 1, "cuda_graph_backend_prefill": "disabled"}
    return CheckedFlags(sglang="0.5.23", flags=[], added=[], values=clean | values, defaults={})


@pytest.mark.parametrize("architecture", [name for family in FAMILIES for name in family.architectures])
def test_every_served_architecture_is_accepted(architecture: str) -> None:
    assert names(situation(), model={"architectures": [architecture]}) == set()


def test_an_architecture_without_capture_is_refused_by_its_name() -> None:
    found = refusals(situation(), {"architectures": ["BloomForCausalLM"]})
    assert [refusal.name for refusal in found] == ["model"]
    assert "BloomForCausalLM" in found[0].sentence
    assert "DeepseekV3ForCausalLM" in found[0].cure


@pytest.mark.parametrize(
    ("values", "graphs"),
    [
        ({"cuda_graph_backend_prefill": None, "disable_cuda_graph": True}, False),
        ({"cuda_graph_backend_prefill": None, "disable_prefill_cuda_graph": True}, False),
        ({"cuda_graph_backend_prefill": None}, True),
        ({"cuda_graph_backend_prefill": "breakable", "disable_cuda_graph": True}, True),
        ({"cuda_graph_config": {"prefill": {"backend": "full"}}}, True),
        ({"cuda_graph_config": {"decode": {"backend": "full"}}}, False),
        ({"cuda_graph_backend_prefill": "full", "cuda_graph_config": {"prefill": {"backend": "disabled"}}}, False),
    ],
)
def test_prefill_graphs_follow_sglangs_own_precedence(values: dict[str, object], graphs: bool) -> None:
    assert names(situation(**values)) == ({"prefill-graph"} if graphs else set())


@pytest.mark.parametrize(
    ("values", "architecture", "fused"),
    [
        ({"tp_size": 8}, "DeepseekV3ForCausalLM", True),
        ({"tp_size": 8}, "KimiK25ForConditionalGeneration", True),
        ({"tp_size": 8}, "LlamaForCausalLM", False),
        ({"tp_size": 1}, "DeepseekV3ForCausalLM", False),
        ({"tp_size": 8, "device": "cpu"}, "DeepseekV3ForCausalLM", False),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, "DeepseekV3ForCausalLM", False),
        ({"tp_size": 8, "attn_dp_size": 2}, "DeepseekV3ForCausalLM", False),
        ({"tp_size": 8, "enforce_disable_flashinfer_allreduce_fusion": True}, "DeepseekV3ForCausalLM", False),
    ],
)
def test_fusion_is_expected_where_sglang_would_turn_it_on(
    values: dict[str, object], architecture: str, fused: bool
) -> None:
    expected = {"allreduce-fusion"} if fused else set()
    assert names(situation(**values), model={"architectures": [architecture]}) == expected


@pytest.mark.parametrize(
    ("dp", "scattered"),
    [
        ({}, True),
        ({"dp_size": 2, "enable_dp_attention": True}, True),
        ({"dp_size": 4, "enable_dp_attention": True}, False),
        ({"attn_dp_size": 4}, False),
    ],
)
def test_all_to_all_is_refused_until_each_rank_has_requests_of_its_own(dp: dict[str, object], scattered: bool) -> None:
    found = names(situation(tp_size=4, moe_a2a_backend="deepep", **dp))
    assert found == ({"scattered-rows"} if scattered else set())


def test_flags_that_a_parser_does_not_have_are_not_added() -> None:
    assert capture_flags({"--disable-radix-cache", "--disable-cuda-graph"}) == [
        "--disable-radix-cache",
        "--disable-cuda-graph",
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_refusal_reads_as_one_sentence_with_a_cure(rule: Rule) -> None:
    assert rule.sentence[0].islower()
    assert not rule.sentence.endswith(".")
    assert rule.cures[-1][0] == "", "the last cure holds for every release"
