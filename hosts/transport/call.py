"""One verb's exchange over a process's pipes: hello, payload, request, then lines until a result or an error.

A host's lines are not trusted. The bytes and the values of a line are limited. Everything before the hello is noise,
and every line after the hello must be one of the envelope's types. A value that its reader refuses is an error of the
host too.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hosts.errors import ConnectionLostError, ProtocolError, PythonError, RoostError
from hosts.transport.bootstrap import header
from hosts.transport.payload import Payload
from hosts.transport.process import Process
from remote.shared.errors import told
from remote.shared.messages.envelope import BEAT_SECONDS, LINE, Call, Failure, Hello, Item, Line, Progress, Result

M = TypeVar("M", bound=BaseModel)

LINE_LIMIT_BYTES = 32 << 20
NOISE_LIMIT_BYTES = 1 << 20
NOISE_SHOWN_BYTES = 600
MOST_VALUES = 2_000_000
"""Values in one line: 32 MiB of `[],[],…` would become a gigabyte of Python objects."""
MOST_KEYS = 250_000
"""Keys in one line: a key with its value takes about 200 bytes of a Python dictionary."""
LONGEST_MESSAGE = 4000
"""Characters of an error's message, and of each line of its details."""
SILENCE_SECONDS = 6 * BEAT_SECONDS
"""A tethered verb sends a beat every 5 s. After six missed beats the connection counts as lost."""

STATUS_COMMAND_NOT_FOUND = 127
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named \\?'([\w.]+)")
"""In the traceback of a Python that lacks pydantic, such as the system's own. No verb has answered then."""


class Conversation:
    """The laptop's end of one call."""

    def __init__(self, process: Process, deadline: float | None) -> None:
        self._process = process
        self._ends_at = None if deadline is None else time.monotonic() + deadline
        self._deadline = deadline
        self._buffer = bytearray()
        self._greeted = False
        self._noise = b""

    def begin(self, payload: Payload, *, workdir: str, verb: str) -> bool:
        """Send the call, wait for the hello, and send the payload if it is missing; return whether it was missing."""
        if self.ask(payload, workdir=workdir, verb=verb):
            return False
        archive = payload.archive
        self._write(b"%d\n" % len(archive) + archive)
        return True

    def ask(self, payload: Payload, *, workdir: str, verb: str) -> bool:
        """Send the call, wait for the hello, and return whether the payload is there already."""
        nonce = secrets.token_hex(8)
        self._write(header(nonce, payload.digest, verb, workdir))
        return self._await_hello(nonce).have_payload

    def send(self, call: Call) -> None:
        """Send the request line."""
        self._write(call.model_dump_json().encode() + b"\n")

    def result(
        self,
        on_progress: Callable[[Progress], None] | None,
        on_item: Callable[[dict[str, Any]], None] | None,
    ) -> dict[str, Any]:
        """Return the verb's result, and pass on the progress and items before it. Raises the verb's own error."""
        while True:
            line = self._parse(self._read_line())
            if isinstance(line, Progress) and on_progress is not None:
                on_progress(line)
            elif isinstance(line, Item) and on_item is not None:
                _hand_on(line.value, on_item)
            elif isinstance(line, Failure):
                raise _as_error(line)
            elif isinstance(line, Result):
                return line.value

    def _write(self, data: bytes) -> None:
        try:
            self._process.write(data)
        except OSError as error:
            raise self._last_words() from error

    def _last_words(self) -> RoostError:
        """Return why the host stopped reading: the error that it sent, or how its program ended."""
        read = 0
        try:
            while read < NOISE_LIMIT_BYTES:
                raw = self._read_line()
                read += len(raw) + 1
                if not self._greeted:
                    self._noise = (self._noise + b"\n" + raw)[-NOISE_SHOWN_BYTES:]
                elif isinstance(line := self._parse(raw), Failure):
                    return _as_error(line)
        except RoostError as error:
            return error
        return ProtocolError("The host stopped reading the request but went on sending lines.")

    def _await_hello(self, nonce: str) -> Hello:
        noise = 0
        while True:
            raw = self._read_line()
            try:
                line = LINE.validate_json(raw)
            except ValidationError:
                line = None
            if isinstance(line, Hello) and line.nonce == nonce:
                self._greeted = True
                return line
            noise += len(raw)
            self._noise = (self._noise + b"\n" + raw)[-NOISE_SHOWN_BYTES:]
            if noise > NOISE_LIMIT_BYTES:
                raise ProtocolError(
                    "The login shell printed over 1 MiB before Roost's first line.",
                    remedy="Make the shell's start-up files silent for sessions without a terminal.",
                )

    def _parse(self, raw: bytes) -> Line:
        if len(raw) > MOST_VALUES and sum(raw.count(mark) for mark in (b",", b"[", b"{")) > MOST_VALUES:
            raise ProtocolError(f"A line of the host's answer has over {MOST_VALUES:,} values.")
        if len(raw) > MOST_KEYS and raw.count(b":") > MOST_KEYS and raw.count(b'":') + raw.count(b'" :') > MOST_KEYS:
            raise ProtocolError(f"A line of the host's answer has over {MOST_KEYS:,} keys.")
        try:
            line = LINE.validate_json(raw)
        except ValidationError as error:
            raise ProtocolError(
                f"A line of the host's answer is not in Roost's protocol: {_printable(raw[:200])}."
            ) from error
        if isinstance(line, Item | Result | Failure):
            _refuse_odd_numbers(line.details if isinstance(line, Failure) else line.value)
        return line

    def _read_line(self) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > LINE_LIMIT_BYTES:
                raise ProtocolError(f"The host's answer has a line of over {LINE_LIMIT_BYTES >> 20} MiB.")
            self._buffer += self._read_some()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _read_some(self) -> bytes:
        patience = SILENCE_SECONDS
        if self._ends_at is not None:
            patience = min(patience, max(0.0, self._ends_at - time.monotonic()))
        try:
            chunk = self._process.read(1 << 16, patience)
        except TimeoutError as error:
            raise self._too_late(patience) from error
        except OSError as error:
            raise self._ended() from error
        if not chunk:
            raise self._ended()
        if self._ends_at is not None and time.monotonic() > self._ends_at:
            raise self._too_late(0.0)
        return chunk

    def _too_late(self, patience: float) -> RoostError:
        if patience >= SILENCE_SECONDS:
            return ConnectionLostError(
                f"The host sent nothing for {SILENCE_SECONDS:.0f} s.",
                remedy="The host or the network to it hangs; detached work there goes on. Try again later.",
            )
        return ConnectionLostError(f"The host sent no result within {self._deadline:.0f} s.")

    def _ended(self) -> RoostError:
        """Return why the stream ended before a result: the exit status and the last lines on stderr."""
        try:
            status = self._process.wait(5.0)
        except (TimeoutError, OSError):
            return ConnectionLostError("The connection broke in the middle of the call.")
        if status < 0:
            return ConnectionLostError("The connection broke in the middle of the call.")
        words = _printable(self._process.stderr_tail().encode()[-600:]) or "nothing on stderr"
        if status == STATUS_COMMAND_NOT_FOUND:
            return PythonError(
                f"The host did not find the command ({words}).",
                remedy="Set `python` (and `exec`, if there is one) for this host.",
            )
        if missing := _MISSING_MODULE.search(words):
            return PythonError(
                f"The host's Python has no module {missing.group(1)!r}.",
                remedy="Set the host's `python` to the one with SGLang; for the laptop, set `python` under `local:` to "
                "one with Roost's extra `data` (in a clone: pip install -e '.[data]').",
            )
        if not self._greeted:
            return self._something_else_ran(status)
        return ProtocolError(f"The program ended with status {status} and no result: {words}.")

    def _something_else_ran(self, status: int) -> RoostError:
        """Return the error for a session that ended before Python said hello, because of the login shell or of sshd."""
        said = b" ".join((self._noise, bytes(self._buffer), self._process.stderr_tail().encode()))
        words = _printable(said[-NOISE_SHOWN_BYTES:]) or "nothing"
        return ProtocolError(
            f"The session ended with status {status} before Python started on the host; the session printed: {words}.",
            remedy="A start-up file of the login shell that ends or replaces the session (exit, exec tmux), a shell "
            "such as nologin, or a ForceCommand does this. `ssh HOST true` must end with status 0.",
        )


def validated(model: type[M], value: dict[str, Any]) -> M:
    """Return a host's value as the expected message; raises ProtocolError with its first mistake."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _not_a_message(error) from error


def _hand_on(value: dict[str, Any], on_item: Callable[[dict[str, Any]], None]) -> None:
    try:
        on_item(value)
    except ValidationError as error:
        raise _not_a_message(error) from error


def _not_a_message(error: ValidationError) -> ProtocolError:
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = _printable(".".join(str(part) for part in problem["loc"]).encode()[:200])
    return ProtocolError(f"The host's answer does not fit the request: {error.title} {where}: {problem['msg']}.")


def _refuse_odd_numbers(value: Any) -> None:
    """Raise for integers beyond 64 bits, which would break sqlite and divisions."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
        elif isinstance(one, int) and not -(1 << 63) <= one < 1 << 63:
            raise ProtocolError("The host's answer has a number of more than 64 bits.")


def _as_error(failure: Failure) -> RoostError:
    """Return the verb's own error."""
    message, remedy = failure.message[:LONGEST_MESSAGE], failure.remedy[:LONGEST_MESSAGE]
    return told(failure.kind, message, remedy, failure.details)


def _printable(raw: bytes) -> str:
    """Return foreign bytes as one harmless line, with control characters and escapes made visible."""
    text = raw.decode("utf-8", "replace").strip()
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
