"""The answerer against a stand-in server: every prompt answered once, ids as they were sampled, turn by turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from remote.answer.conversation import CONTEXT_FULL, NO_CALL, OTHER_CALL, Conversation, Sampled
from remote.answer.speaker import Prompt
from remote.answer.table import answers
from remote.data.asking import Script
from remote.shared.errors import HostError
from remote.shared.messages.answers import AnswersRequest
from remote.work.progress import read_state, settled
from tests.remote.answer.conftest import END, AnsweringHost, identity_of
from tests.remote.answer.saying import answer_of
from tests.remote.data.samples import chat
from tests.remote.data.templates import THINKING
from tests.remote.extract.conftest import Host, Running
from tests.remote.extract.standin_process import until

NOTHING = np.zeros(1, np.int32)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def opening(server: Any, index: int, turn: int = 0) -> list[int]:
    """What the server was sent for a turn."""
    found = [one["input_ids"] for one in server.asked() if (one["index"], one["turn"]) == (index, turn)]
    return list(found[-1])


def test_single_prompts_keep_the_sampled_ids_and_their_mask(answering: AnsweringHost) -> None:
    server = answering.serve()
    answering.assign([{"prompt": f"Question {number}?"} for number in range(12)])
    state = answering.answer()
    assert (state.status, state.counts.done) == ("complete", 12)
    for index in range(12):
        ((ids, mask),) = answering.answered(index).rows
        prompt = opening(server, index)
        said, _ = answer_of(prompt, 40, END)
        assert ids.tolist() == [*prompt, *said]
        assert mask.tolist() == [0] * len(prompt) + [1] * len(said)


def test_every_turn_is_answered_on_top_of_the_answers_before_it_in_one_record(answering: AnsweringHost) -> None:
    server = answering.serve()
    answering.assign([chat("One?", "old", "Two?", "older", "Three?")])
    answering.answer()
    found = answering.answered(0)
    ((ids, mask),) = found.rows
    sent = [opening(server, 0, turn) for turn in range(3)]
    said = [answer_of(prompt, 40, END)[0] for prompt in sent]
    assert sent[1][: len(sent[0]) + len(said[0])] == [*sent[0], *said[0]]
    assert ids.tolist() == [*sent[2], *said[2]]
    assert int(mask.sum()) == sum(map(len, said))
    assert "old" not in "".join(turn.text for turn in found.account.turns)
    assert found.account.summary.turns == 3


def test_only_the_last_turn_is_answered_if_requested(answering: AnsweringHost) -> None:
    server = answering.serve()
    answering.assign([chat("One?", "kept answer", "Two?", "older")], turns="last")
    answering.answer()
    assert [one["turn"] for one in server.asked()] == [0]
    ((_, mask),) = answering.answered(0).rows
    assert int(mask.sum()) == len(answer_of(opening(server, 0), 40, END)[0])


@pytest.mark.parametrize("last_only", [False, True])
def test_a_template_that_drops_thinking_makes_one_record_a_turn(
    answering: AnsweringHost, make_tokenizer: Any, last_only: bool
) -> None:
    answering.model = make_tokenizer(THINKING)
    server = answering.serve(thinking=True)
    answering.assign([chat("One?", "old", "Two?", "older")], last_only=last_only)
    answering.answer()
    rows = answering.answered(0).rows
    sent = [opening(server, 0, turn) for turn in range(2)]
    for (ids, mask), prompt in zip(rows, sent[1:] if last_only else sent, strict=True):
        said, _ = answer_of(prompt, 40, END, thinking=True)
        assert ids.tolist() == [*prompt, *said]
        assert np.flatnonzero(mask).tolist() == list(range(len(prompt), len(ids)))


def test_after_a_killed_server_only_the_open_turn_is_asked_again(
    answering: AnsweringHost, running: Callable[[Host], Running]
) -> None:
    server = answering.serve(faults={"0": ["", "die", ""]})
    answering.assign([chat("One?", "old", "Two?", "older")])
    run = running(answering.host)
    until(lambda: server.process is not None and server.process.poll() is not None, "the server's death")
    server.restart()
    assert run.end().counts.done == 1
    ((ids, _),) = answering.answered(0).rows
    assert [one["turn"] for one in server.asked()] == [1]
    assert ids.tolist() == [*opening(server, 0, 1), *answer_of(opening(server, 0, 1), 40, END)[0]]


def test_a_second_session_answers_only_records_without_a_row(answering: AnsweringHost) -> None:
    server = answering.serve()
    answering.assign([{"prompt": f"Question {number}?"} for number in range(6)])
    answering.answer()
    before = {index: answering.host.paths.shard(index).read_bytes() for index in range(6)}
    answering.host.paths.shard(2).unlink()
    assert answering.answer().counts.done == 6
    assert sorted(server.seen().items())[2] == ("2", 2)
    assert {index: answering.host.paths.shard(index).read_bytes() for index in range(6)} == before


def test_a_killed_answerer_s_status_names_the_task_that_resumes_it(answering: AnsweringHost) -> None:
    answering.serve()
    answering.assign([{"prompt": "Question?"}])
    answering.answer()
    left = read_state(answering.host.paths)
    assert left is not None
    killed = settled(left.model_copy(update={"status": "running"}), alive=False)
    assert (killed.status, killed.cause.split("; ")[1]) == ("failed", "`inv answer` resumes the run.")


@pytest.mark.parametrize("fault", ["short", "500", "garbage", "abort"])
def test_an_invalid_answer_is_asked_again(answering: AnsweringHost, fault: str) -> None:
    server = answering.serve(faults={"1": [fault, ""]})
    answering.assign([{"prompt": f"Question {number}?"} for number in range(4)])
    assert answering.answer().counts.done == 4
    assert server.seen()["1"] == 2


def test_a_server_that_captures_is_refused(answering: AnsweringHost) -> None:
    answering.host.serve(model=str(answering.model))
    answering.assign([{"prompt": "Question?"}])
    with pytest.raises(HostError, match=r"captures hidden states \(mode 'extract'\).*inv restart .*--mode serve"):
        answering.answer()


def test_a_host_with_another_chat_template_is_refused(answering: AnsweringHost, make_tokenizer: Any) -> None:
    answering.assign([{"prompt": "Question?"}])
    answering.model = make_tokenizer(THINKING)
    answering.serve()
    with pytest.raises(HostError, match=r"chat template in .* has the digest"):
        answering.answer()


def test_a_prompt_without_room_for_an_answer_is_quarantined_and_a_full_context_ends_a_conversation(
    answering: AnsweringHost,
) -> None:
    answering.serve()
    answering.assign(
        [{"prompt": "x" * 400}, chat("One?", "old", "y" * 300, "older"), {"prompt": "Short?"}], context=300
    )
    state = answering.answer()
    assert (state.counts.done, state.counts.quarantined) == (2, 1)
    assert "with an answer of 16 has room for 277" in next(iter(answering.host.causes()))
    assert {summary.ended for summary in answering.summaries()} == {"", CONTEXT_FULL}


def test_the_longest_conversations_are_sent_first(answering: AnsweringHost) -> None:
    server = answering.serve()
    answering.assign([{"prompt": "x" * length} for length in (5, 300, 40, 200)], assignment={"concurrency": 1})
    answering.answer()
    assert [one["index"] for one in server.asked()] == [1, 3, 2, 0]


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', ""),
        ('<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>', OTHER_CALL),
        ("It is 2, I think.", NO_CALL),
    ],
)
def test_a_tools_result_is_used_only_for_the_same_call(said: str, ended: str) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "It is 2."},
    ]
    talk = Conversation(Saying(said), Script(messages, [{}], [1, 3]), NOTHING, 100)  # type: ignore[arg-type]

    async def ask(*_: object) -> Sampled:
        return Sampled(NOTHING, "stop", None, 0, None, 0)

    asyncio.run(talk.hold(ask))
    assert (talk.ended, len(talk.turns)) == (ended, 1 if ended else 2)


class Saying:
    """A speaker whose model always says the same."""

    def __init__(self, text: str) -> None:
        self._text = text

    def text_of(self, _: object) -> str:
        return self._text

    def first(self, *_: object) -> Prompt:
        return Prompt(NOTHING, "", goes_on=False)

    def next(self, *_: object) -> Prompt:
        return Prompt(NOTHING, "", goes_on=True)


def test_the_table_shows_the_sampling_and_that_seeds_are_ignored(answering: AnsweringHost) -> None:
    answering.serve()
    made = answering.assign([{"prompt": f"Question {number}?"} for number in range(8)], temperature=0.7, max_tokens=9)
    answering.answer()
    request = AnswersRequest(run=identity_of(made, temperature=0.7, max_tokens=9))
    table = answers(request, answering.host.context)
    assert (table.records, table.turns, sum(table.finish.values())) == (8, 8, 8)
    assert table.marks == {"length": table.finish["length"]}
    assert (table.changed, table.deterministic) == (0, False)
    assert "--enable-deterministic-inference" in table.why_not


def test_equal_seeds_give_equal_requests_and_each_record_has_its_own_seed(answering: AnsweringHost) -> None:
    server = answering.serve()
    answering.assign([{"prompt": "Same?"}, {"prompt": "Same?"}], temperature=1.0, seed=7)
    answering.answer()
    first = {one["index"]: one["sampling_seed"] for one in server.asked()}
    assert len(set(first.values())) == 2
    answering.host.paths.shard(0).unlink()
    answering.answer()
    assert {one["index"]: one["sampling_seed"] for one in server.asked()} == first
