"""Parts of a pipeline's stages are joined into the dump that one process would have written, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from remote.extract.dump import Expected
from remote.extract.join import join
from remote.extract.store import store
from remote.shared.errors import RecordError
from remote.shared.shard.names import request_of, stages
from tests.remote.extract.conftest import Host, identity, tokens_of
from tests.remote.extract.standin import CAPTURE, SGLANG, Config, dump_content, states_of

ROWS = 40
RID = f"roost.abc.7.1.{ROWS}"
TOKENS = tokens_of(7, ROWS)
CONFIG = Config("", "", 0)
SLOTS = (slice(0, 1), slice(1, 3))

MakePart = Callable[..., Path]


@pytest.fixture
def part(tmp_path: Path) -> MakePart:
    """Write one stage's part."""

    def make(stage: int, *, slots: slice | None = None, tokens: np.ndarray = TOKENS, config: Config = CONFIG) -> Path:
        path = tmp_path / f"{RID}.stage{stage}of2.safetensors"
        path.write_bytes(dump_content(RID, tokens.tolist(), config, "", slots or SLOTS[stage]))
        return path

    return make


def test_joined_parts_pass_as_the_record_s_own_dump(part: MakePart, tmp_path: Path) -> None:
    whole = tmp_path / f"{RID}.safetensors"
    join([part(0), part(1)], whole)
    stored = store(whole, tmp_path / "hs_7.safetensors", Expected(RID, 7, TOKENS, identity(), SGLANG, CAPTURE))
    with safe_open(stored.path, "np") as opened:
        np.testing.assert_array_equal(opened.get_tensor("token_ids"), TOKENS)
        np.testing.assert_array_equal(opened.get_tensor("hidden_states"), states_of(TOKENS.tolist(), CONFIG))
    assert len(stored.mean_norm) == 3


def test_parts_of_different_records_or_servers_are_refused(part: MakePart, tmp_path: Path) -> None:
    whole = tmp_path / "whole.safetensors"
    with pytest.raises(RecordError, match="token_digest is"):
        join([part(0), part(1, tokens=tokens_of(8, ROWS))], whole)
    with pytest.raises(RecordError, match="sglang is 'other'"):
        join([part(0), part(1, config=replace(CONFIG, sglang="other"))], whole)
    with pytest.raises(RecordError, match=r"have the boundaries \[1, 6\], but the record has \[1, 3, 6\]"):
        join([part(0), part(1, slots=slice(2, 3))], whole)
    assert not whole.exists()
    assert list(tmp_path.glob(".aside*")) == []


def test_rows_that_change_in_a_part_or_while_parts_are_joined_are_seen(part: MakePart, tmp_path: Path) -> None:
    first, second = part(0), part(1)
    content = bytearray(second.read_bytes())
    content[-5] ^= 1
    second.write_bytes(content)
    join([first, second], tmp_path / f"{RID}.safetensors")
    with pytest.raises(RecordError, match="The rows of boundary 6 are not those that the forward pass left"):
        store(
            tmp_path / f"{RID}.safetensors",
            tmp_path / "hs_7.safetensors",
            Expected(RID, 7, TOKENS, identity(), SGLANG, CAPTURE),
        )


def test_a_part_that_is_cut_short_is_refused(part: MakePart, tmp_path: Path) -> None:
    short = part(1)
    short.write_bytes(short.read_bytes()[:-10])
    with pytest.raises(RecordError, match="but its header says"):
        join([part(0), short], tmp_path / "whole.safetensors")


def test_a_record_is_whole_once_every_stage_is_there() -> None:
    first, second = f"{RID}.stage0of2.safetensors", f"{RID}.stage1of2.safetensors"
    assert stages(RID, {first}) == []
    assert stages(RID, {second, first, "other"}) == [first, second]
    for name in (first, f"{RID}.safetensors", f"{RID}.error.json", f"{RID}.canary.stage0of2.safetensors"):
        assert request_of(name) == RID


def test_a_run_over_a_pipeline_leaves_neither_parts_nor_joined_dumps(host: Host) -> None:
    host.serve(stages=2)
    host.assign([16, 1, 300, 40])
    state = host.extract()
    assert (state.status, state.counts.done, state.retries) == ("complete", 4, 0)
    assert host.dumps() == []
