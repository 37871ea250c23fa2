"""A load generator's numbers count only if the server's answers are complete."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import pytest

from remote.bench.answers import Answers, listening, problem

REFUSED = {"error": {"object": "error", "message": "The input (9000 tokens) is longer than the context.", "code": 400}}


def last_chunk(request: int, prompt: int = 256, output: int = 128, finish: str | None = "length", **more: Any) -> Any:
    reason = None if finish is None else {"type": finish, **more}
    about = {"id": f"r{request}", "prompt_tokens": prompt, "completion_tokens": output, "finish_reason": reason}
    return {"text": "", "meta_info": about}


def heard(*documents: Any) -> Answers:
    answers = Answers()
    for document in documents:
        answers.hear(document)
    return answers


def test_answers_of_the_requested_lengths_count_with_any_text() -> None:
    assert problem(heard(last_chunk(1), last_chunk(2)), 2, 256, 128) is None


def test_the_last_chunk_of_a_stream_counts() -> None:
    streamed = [last_chunk(1, output=tokens, finish=None) for tokens in (1, 64)]
    assert problem(heard(*streamed, last_chunk(1)), 1, 256, 128) is None
    assert (
        problem(heard(*streamed), 1, 256, 128)
        == "0 of 1 requests were answered completely; an answer broke off in the middle"
    )


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        (
            [REFUSED, REFUSED],
            "0 of 2 requests were answered completely; the server said: The input .9000 tokens. is longer",
        ),
        ([last_chunk(1), {"error": "out of memory"}], "1 of 2 .* the server said: out of memory"),
        ([last_chunk(1), last_chunk(2, output=3, finish="stop")], "1 of 2 .* 3 of 128 tokens .finish reason stop"),
        ([last_chunk(1), last_chunk(2, finish="abort", message="no room")], "1 of 2 .* ended a request: no room"),
        ([last_chunk(1)], "1 of 2 requests were answered completely; the others got no answer"),
        ([last_chunk(1), last_chunk(2, prompt=511)], "counted prompts of 511 tokens instead of 256"),
    ],
)
def test_a_measurement_with_one_bad_answer_is_refused(documents: list[Any], said: str) -> None:
    why = problem(heard(*documents), 2, 256, 128)
    assert why is not None
    assert re.search(said, why)


def test_both_json_decoders_are_observed_and_restored() -> None:
    decoders = (json.loads, orjson.loads)
    with listening() as answers:
        json.loads(json.dumps(last_chunk(1)))
        orjson.loads(orjson.dumps(last_chunk(2)))
        orjson.loads(b'{"model_type": "a config file"}')
        json.loads("[1, 2]")
    assert sorted(answers.by_request) == ["r1", "r2"]
    assert not answers.errored
    assert (json.loads, orjson.loads) == decoders
