"""A complete extraction against the stand-in: the content of ledger and shards, for any behaviour of the server."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import xxhash
from safetensors import safe_open

from remote.shared.errors import HostError
from remote.shared.messages.extract import IndicesRequest
from remote.work.ledger import Ledger
from remote.work.verbs import requeue
from tests.remote.extract.conftest import Host, identity, tokens_of
from tests.remote.extract.standin import states_of
from tests.remote.extract.standin_process import until

LENGTHS = [5, 40, 17, 128, 1, 300, 64, 9]


def test_every_record_becomes_a_shard_with_a_row_and_leaves_no_dump(host: Host) -> None:
    server = host.serve()
    host.assign(LENGTHS, first=100)
    state = host.extract()
    assert state.status == "complete"
    assert (state.counts.done, state.counts.tokens_done) == (len(LENGTHS), sum(LENGTHS))
    assert host.dumps() == []
    with Ledger(host.paths.ledger) as ledger:
        rows = {row.index: row for _, row in ledger.shards()}
    assert sorted(rows) == list(range(100, 108))
    for place, length in enumerate(LENGTHS):
        shard, row = host.paths.shard(100 + place), rows[100 + place]
        content = shard.read_bytes()
        assert (row.rows, row.size_bytes, row.xxh3) == (length, len(content), xxhash.xxh3_128_hexdigest(content))
        with safe_open(shard, "np") as opened:
            tokens = opened.get_tensor("token_ids")
            np.testing.assert_array_equal(tokens, tokens_of(100 + place, length))
            np.testing.assert_array_equal(opened.get_tensor("hidden_states"), states_of(tokens.tolist(), server.config))


@pytest.mark.parametrize(
    "fault", ["500", "503", "garbage", "abort", "wrong", "error", "full", "rows", "nan", "zeros", "bit"]
)
def test_a_passing_fault_costs_a_retry(host: Host, fault: str) -> None:
    server = host.serve(faults={"3": [fault, ""]})
    host.assign(LENGTHS)
    state = host.extract()
    assert (state.counts.done, state.counts.quarantined, state.retries) == (len(LENGTHS), 0, 1)
    assert server.seen()["3"] == 2
    assert host.dumps() == []


@pytest.mark.parametrize(
    ("fault", "cause", "tries"),
    [
        ("400", "The server answered 400", 1),
        ("500", "The server answered 500", 3),
        ("rows", "The dump's rows is '127'", 3),
        ("tokens", "The dump's token ids' digest", 3),
        ("boundaries", "The dump's boundaries is [0, 3, 6], but [1, 3, 6] was requested", 3),
        ("nonfinite", "The capture saw a value that is not finite", 3),
        ("nan", "The rows of boundary 3 are not those that the forward pass left", 3),
        ("zeros", "Row 64 of boundary 3 is all zeros", 3),
        ("short", "but its header says", 3),
        ("error", "A row never came", 3),
        ("foreign slot", "The rows of boundary 1 are not those that the forward pass left", 3),
        ("slots exchanged", "The rows of boundary 1 are not those that the forward pass left", 3),
        ("row repeated", "The rows of boundary 3 are not those that the forward pass left", 3),
        ("stale rows", "The rows of boundary 3 are not those that the forward pass left", 3),
    ],
)
def test_a_poison_record_is_quarantined_with_its_cause_and_the_others_go_on(
    host: Host, fault: str, cause: str, tries: int
) -> None:
    server = host.serve(faults={"3": [fault]})
    host.assign(LENGTHS)
    state = host.extract()
    assert (state.status, state.counts.done, state.counts.quarantined) == ("complete", len(LENGTHS) - 1, 1)
    assert host.states()[3] == "quarantined"
    (said,) = host.causes()
    assert cause in said
    assert server.seen()["3"] == tries
    assert not host.paths.shard(3).exists()
    assert host.dumps() == []


def test_a_series_of_failures_ends_the_run_with_the_cause_instead_of_quarantining_everything(host: Host) -> None:
    server = host.serve(faults={str(index): ["500"] for index in range(200)})
    host.assign([8] * 200, max_consecutive_failures=10, in_flight_tokens=32)
    with pytest.raises(HostError, match=r"10 consecutive attempts failed, the last with: The server answered 500"):
        host.extract()
    assert sum(server.seen().values()) < 20
    server.set_faults({})
    assert host.extract().status == "complete"
    assert set(host.states()) == set(range(200))


def test_records_quarantined_by_a_series_of_failures_are_open_again(host: Host) -> None:
    server = host.serve(faults={str(index): ["400"] for index in range(5, 30)})
    host.assign([8] * 30, max_consecutive_failures=10, in_flight_tokens=8)
    with pytest.raises(HostError, match="10 consecutive attempts failed"):
        host.extract()
    assert set(host.states()) == set(range(5))
    server.set_faults({})
    assert host.extract().counts.done == 30


def test_records_re_queued_while_it_runs_are_done_again_before_it_ends(host: Host) -> None:
    server = host.serve(faults={"19": ["hang", ""]})
    host.assign([8] * 20, request_timeout_seconds=3.0)

    def meddle() -> None:
        until(lambda: len(host.states()) == 19, "all but one")
        requeue(IndicesRequest(identity=identity(), epoch=1, indices=[1, 2]), host.context)

    again = threading.Thread(target=meddle)
    again.start()
    host.extract()
    again.join()
    assert {index: count for index, count in server.seen().items() if count > 1} == {"1": 2, "2": 2, "19": 2}
    assert set(host.states()) == set(range(20))


def test_records_that_no_server_can_take_are_refused_before_anything_is_sent(host: Host) -> None:
    server = host.serve()
    lowest = int(tokens_of(3, 9).max())
    host.assign([1, 4090, 0, 9], vocab_size=lowest)
    host.extract()
    assert host.states() == {0: "done", 1: "quarantined", 2: "quarantined", 3: "quarantined"}
    assert set(server.seen()) == {"0"}
    assert set(host.causes()) == {
        "It has 4090 tokens, but a context of 4096 admits 4089.",
        "It has no tokens.",
        f"Token id {lowest} is outside the vocabulary of {lowest}.",
    }


def test_several_servers_share_the_work(host: Host) -> None:
    first = host.serve("a", delay=0.02)
    second = host.serve("b", delay=0.02, dump_dir=str(host.dump_dir / "b"))
    host.assign([16] * 40, server_names=["a", "b"], in_flight_tokens=64)
    assert host.extract().counts.done == 40
    assert min(len(first.seen()), len(second.seen())) >= 10
    assert len(first.seen()) + len(second.seen()) == 40
