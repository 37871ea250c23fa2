"""Finds the characters of a rendered conversation that the assistant generated.

Called in the worker processes of `prepare`; pure. Two methods, in this order:

1. `{% generation %}` blocks, if the template has them: its author marked the answers.
2. The marker method, which is right for templates that are not prefix-stable (Qwen3 and DeepSeek-R1 drop the reasoning
   of earlier turns, others trim, merge or reorder). For each assistant turn the *whole* conversation is rendered twice:
   unchanged, and with a private-use character in place of everything that this turn generated. Both texts share
   everything around the turn. The text between their common prefix and common suffix is the turn's text, as this
   template shows it in this place.

   The span is then widened to everything that the model would have had to generate:
   - left, to the end of the template's own generation prompt, so that an opening `<think>` counts unless the
     generation prompt already has it; without such a prompt, to the end of the question;
   - right, over the token that closes the turn (`<|im_end|>`), because a drafter must learn to end. White space
     after it and the next turn's header do not count. If no token closes a turn (GLM-4), the next role's token
     counts if the model's generation config names it as an end.
"""

from __future__ import annotations

from typing import Any

from remote.data.encoding import Spans
from remote.data.messages import Message
from remote.data.records import Conversation
from remote.data.template import ChatTemplate
from remote.shared.errors import RecordError
from remote.shared.messages.dataset import MaskMethod

_TAIL = 8
"""Characters at the end of a question by which it is found in the text; `[/INST]` has seven."""


def assistant_spans(template: ChatTemplate, conversation: Conversation) -> tuple[str, Spans, MaskMethod]:
    """Return the text, the sorted, disjoint spans of its characters under the loss, and the method that found them."""
    text, spans = template.render_marked(conversation.messages, conversation.tools)
    if spans is None:
        return text, _marked_spans(template, conversation, text), "marker"
    if conversation.muted:
        muted = _marked_spans(template, conversation, text, only=conversation.muted)
        spans = [span for span in spans if not any(span[0] < stop and start < span[1] for start, stop in muted)]
    return text, spans, "generation"


def _marked_spans(
    template: ChatTemplate, conversation: Conversation, text: str, only: frozenset[int] | None = None
) -> Spans:
    """Return the spans of the turns that are not muted, or of the turns `only`."""
    marker = _unused_character(text)
    spans: Spans = []
    floor = 0
    for turn, message in enumerate(conversation.messages):
        if message["role"] != "assistant":
            continue
        renderings = _renderings_marked(template, conversation, turn, marker)
        if all(rendering == text for rendering in renderings):
            continue
        start, stop = _difference(text, renderings)
        if start < floor:
            raise RecordError(f"the template moves or rewrites turns after message {turn}, so its mask is unknown")
        start = _after_generation_prompt(template, conversation, turn, text, (start, stop), floor)
        stop = _after_ending(template, text, stop, within_call=len(renderings) > 1)
        if stop <= start:
            continue
        if (turn in only) if only is not None else (turn not in conversation.muted):
            spans.append((start, stop))
        floor = stop
    return spans


def _unused_character(text: str) -> str:
    """Return a private-use character that is not in `text`."""
    return next(character for character in map(chr, range(0xE000, 0xF8FF)) if character not in text)


def _renderings_marked(template: ChatTemplate, conversation: Conversation, turn: int, marker: str) -> list[str]:
    """Return renderings in which `marker` replaces the generated content of message `turn`.

    Some templates require a call before a tool's answer; for those the call stays and its parts are marked. The
    answer's header may repeat the call's name (gpt-oss), so there is a second rendering in which only the arguments are
    marked.
    """
    before, message = conversation.messages[:turn], conversation.messages[turn]
    after = conversation.messages[turn + 1 :]
    plain: Message = {"role": "assistant", "content": marker}
    try:
        return [template.render([*before, plain, *after], conversation.tools)]
    except RecordError:
        if not message.get("tool_calls"):
            raise
    renderings = []
    for whole in (True, False):
        calls = [_marked_call(call, marker, template, whole) for call in message["tool_calls"]]
        content = marker if message["content"] else ""
        marked = {"role": "assistant", "content": content, "tool_calls": calls}
        renderings.append(template.render([*before, marked, *after], conversation.tools))
    return renderings


def _marked_call(call: dict[str, Any], marker: str, template: ChatTemplate, whole: bool) -> dict[str, Any]:
    arguments: Any = {marker: marker} if template.takes_argument_objects else marker
    name = marker if whole else call["function"]["name"]
    return {**call, "function": {"name": name, "arguments": arguments}}


def _difference(text: str, marked: list[str]) -> tuple[int, int]:
    """Return the half-open range of `text` between the prefix common with all of `marked` and the longest suffix."""
    prefix = min(_common(text, one) for one in marked)
    suffix = max(min(_common(text[::-1], one[::-1]), min(len(text), len(one)) - prefix) for one in marked)
    return prefix, len(text) - suffix


def _common(one: str, other: str) -> int:
    """Return the length of the common prefix. By bisection, because comparing slices is much faster than characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _after_generation_prompt(
    template: ChatTemplate, conversation: Conversation, turn: int, text: str, span: tuple[int, int], floor: int
) -> int:
    """Move the start of `span` to the end of the generation prompt, if the text shows it just before this turn.

    If the text has only the beginning of the prompt (MiniMax's prompt opens a `<think>`, which a turn without reasoning
    lacks), the turn begins where text and prompt differ.
    """
    start, stop = span
    history = conversation.messages[:turn]
    try:
        asked = template.render(history, conversation.tools)
        prompted = template.render(history, conversation.tools, prompt=True)
    except RecordError:
        return start
    prompt = prompted[_common(asked, prompted) :]
    if not prompt:
        return _after_question(template, asked, text, start, floor)
    if text.startswith(asked) and floor <= len(asked) <= start:
        if text.startswith(prompted) and len(prompted) <= stop:
            return len(prompted)
        return min(start, template.last_boundary(text, len(asked), _common(text, prompted)))
    found = text.rfind(prompt, floor, start)
    after = found + len(prompt)
    return after if found >= 0 and not template.has_special(text[after:start]) else start


def _after_question(template: ChatTemplate, asked: str, text: str, start: int, floor: int) -> int:
    """Move the start of `span` to the end of the question, for templates without a generation prompt.

    If the template writes only white space between question and answer, the text before a call (Mistral's
    `[TOOL_CALLS]`) is generated too.
    """
    tail = asked[-_TAIL:]
    after = text.rfind(tail, floor, start) + len(tail)
    found = after >= len(tail)
    return after if found and (template.answers_follow_questions or text[after:start].isspace()) else start


def _after_ending(template: ChatTemplate, text: str, stop: int, *, within_call: bool) -> int:
    """Move `stop` behind the token that closes the turn. The text before that token was generated too.

    A call can have special tokens of its own before the token that closes the turn (Kimi).
    """
    found = [(at, token) for token in template.endings if (at := text.find(token, stop)) >= 0]
    if found:
        at, token = min(found)
        if within_call or not template.has_special(text[stop:at]):
            return at + len(token)
    token = template.special_at(text[stop:])
    return text.index(token, stop) + len(token) if token and token in template.ends else stop
