"""Records a server's own answers to the load generator's requests. Runs on the host.

SGLang's load generator counts an HTTP 200 with an error inside as a completed request, reports the number of tokens
that it asked for, and (before 0.5.23) ignores how many prompt tokens the server counted. `listening` reads the same
answers and keeps what the generator drops. `generator.py` listens, `verb.py` judges.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, Field

ERRORS_KEPT = 20


class Answer(BaseModel):
    """The server's last message about one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish: str = ""
    """SGLang's finish reason: `length`, `stop`, `abort`; empty if the answer broke off before it."""
    message: str = ""
    """Why the request was aborted, if the server said so."""


class Answers(BaseModel):
    """All answers of one run of the load generator."""

    by_request: dict[str, Answer] = Field(default_factory=dict)
    errors: list[str] = Field(default_factory=list)
    """Messages of answers that were errors under HTTP 200; the first `ERRORS_KEPT` of them."""
    errored: int = 0

    def hear(self, document: object) -> None:
        """Record one decoded JSON document; documents that are not a server's answer are ignored."""
        if not isinstance(document, dict):
            return
        error, about = document.get("error"), document.get("meta_info")
        if error is not None and about is None:
            self._fail(error)
        elif isinstance(about, dict) and "completion_tokens" in about:
            self.by_request[str(about.get("id"))] = _answer(about)

    def _fail(self, error: object) -> None:
        self.errored += 1
        if len(self.errors) < ERRORS_KEPT:
            text = error.get("message") if isinstance(error, dict) else error
            self.errors.append(str(text)[:500])


def _answer(about: dict[str, Any]) -> Answer:
    reason = about.get("finish_reason") or {}
    return Answer(
        prompt_tokens=about.get("prompt_tokens") or 0,
        completion_tokens=about.get("completion_tokens") or 0,
        finish=str(reason.get("type", "")),
        message=str(reason.get("message") or "")[:500],
    )


@contextmanager
def listening() -> Iterator[Answers]:
    """Record every JSON document that this process decodes within the block.

    SGLang 0.5.9 decodes answers with `json.loads`, 0.5.23 with `orjson.loads`; both are wrapped.
    """
    import orjson  # SGLang installs it

    heard = Answers()
    modules: list[Any] = [json, orjson]
    before = [module.loads for module in modules]

    def wrapped(loads: Any) -> Any:
        def hearing(*arguments: Any, **options: Any) -> Any:
            document = loads(*arguments, **options)
            heard.hear(document)
            return document

        return hearing

    try:
        for module, loads in zip(modules, before, strict=True):
            module.loads = wrapped(loads)
        yield heard
    finally:
        for module, loads in zip(modules, before, strict=True):
            module.loads = loads


def problem(answers: Answers, requests: int, prompt_tokens: int, output_tokens: int) -> str | None:
    """Return why a run's numbers cannot be trusted, as the end of a sentence; None if every answer was complete."""
    heard = answers.by_request.values()
    whole = [each for each in heard if each.finish == "length" and each.completion_tokens == output_tokens]
    if answers.errored or len(whole) != requests:
        return f"{len(whole)} of {requests} requests were answered completely{_why(answers, output_tokens)}"
    other = sorted({each.prompt_tokens for each in heard} - {prompt_tokens})
    if other:
        return f"the server counted prompts of {other[0]} tokens instead of {prompt_tokens}"
    return None


def _why(answers: Answers, output_tokens: int) -> str:
    if answers.errors:
        return f"; the server said: {answers.errors[0]}"
    for each in answers.by_request.values():
        if each.finish == "abort":
            return f"; the server ended a request: {each.message or 'aborted'}"
        if not each.finish:
            return "; an answer broke off in the middle"
        if each.completion_tokens != output_tokens:
            return f"; an answer had {each.completion_tokens} of {output_tokens} tokens (finish reason {each.finish})"
    return "; the others got no answer"
