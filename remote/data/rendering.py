"""Renders chat templates like transformers, but without importing transformers and torch, and within a deadline.

Called by `remote.data.template` in the worker processes of `prepare`. The environment is that of
`transformers.utils.chat_template_utils`: the same sandbox, filters, functions and `{% generation %}` blocks;
`tests/remote/data/test_real_templates.py` compares the two.
"""

from __future__ import annotations

import datetime
import json
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from remote.shared.errors import RecordError

DEADLINE_SECONDS = 20.0
"""Deadline for one record. The largest real templates take milliseconds."""
MEMORY_BYTES = 4 << 30
"""Memory that one rendering may use in addition to the process's memory."""

Spans = list[tuple[int, int]]


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` … `{% endgeneration %}`: notes which characters of the text are inside."""

    tags = {"generation"}  # noqa: RUF012

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.before: Callable[[], int] | None = None
        self.spans: Spans = []
        environment.extend(generation=self)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Callable[[], str]) -> str:
        text = caller()
        if self.before is not None:
            start = self.before()
            self.spans.append((start, start + len(text)))
        return text


@lru_cache(maxsize=8)
def compiled(text: str) -> Any:
    """Return the compiled template; raise jinja2.TemplateError if the text is no template."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(text)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def render(template: Any, **variables: Any) -> tuple[str, Spans]:
    """Return the text and the spans of its generation blocks, in characters."""
    blocks: list[str] = []
    length = 0
    noted: _Generation = template.environment.generation
    noted.spans, noted.before = [], lambda: length
    try:
        for block in template.root_render_func(template.new_context(variables)):
            blocks.append(block)
            length += len(block)
    finally:
        noted.before = None
    return "".join(blocks), noted.spans


@contextmanager
def alarms() -> Iterator[None]:
    """Install the alarm's signal handler for the block, because installing it for each text costs too much.

    Only a process's main thread receives signals. Worker processes render in it; in other threads there are no limits.
    """
    global _has_alarm  # noqa: PLW0603
    if _has_alarm or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _out_of_time)
    _has_alarm = True
    try:
        yield
    finally:
        _has_alarm = False
        signal.signal(signal.SIGALRM, before)


_has_alarm = False


@contextmanager
def bounded() -> Iterator[None]:
    """Limit the time and memory of the block; raise RecordError if it exceeds them."""
    with alarms():
        if not _has_alarm or threading.current_thread() is not threading.main_thread():
            yield
            return
        signal.setitimer(signal.ITIMER_REAL, DEADLINE_SECONDS)
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (_allowed(limits), limits[1]))
        try:
            yield
        except MemoryError:
            raise RecordError(
                f"the chat template needs more than {MEMORY_BYTES >> 30} GiB of memory to render it"
            ) from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            resource.setrlimit(resource.RLIMIT_DATA, limits)


@lru_cache(maxsize=1)
def _allowed(limits: tuple[int, int]) -> int:
    """Return the process's data at its first rendering plus `MEMORY_BYTES`, or the system's limit if that is lower."""
    wanted = _data_bytes() + MEMORY_BYTES
    return min([wanted, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])


def _data_bytes() -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return 0


def _out_of_time(signum: int, frame: FrameType | None) -> None:
    raise RecordError(f"the chat template did not finish rendering it within {DEADLINE_SECONDS:g} seconds")
