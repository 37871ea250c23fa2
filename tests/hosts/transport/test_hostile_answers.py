"""Any answer of a host is a correct result or one error sentence, in bounded memory."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.errors import ConnectionLostError, HostError, ProtocolError, RoostError
from hosts.inventory.model import Host
from hosts.transport.backend import Backend
from hosts.transport.call import LONGEST_MESSAGE, Conversation
from hosts.transport.payload import current_payload
from hosts.transport.process import Process
from remote.shared.messages.envelope import Call, Message
from remote.shared.messages.extract import RunRequest, RunStatus, ShardBatch
from remote.shared.messages.facts import Facts
from remote.shared.messages.server import ServersResult
from remote.shared.messages.verify import VerifyResult
from tests.hostile import examples, json_objects, objects_like

RESULTS: list[type[Message]] = [RunStatus, ServersResult, VerifyResult, Facts, ShardBatch]


class Script(Process):
    """A host that reads nothing and says what it was told to, once it has heard the nonce."""

    def __init__(self, said: list[bytes]) -> None:
        super().__init__()
        self._said = said
        self.greeted = False

    def write(self, data: bytes) -> None:
        if not self.greeted:
            self.greeted = True
            nonce = data.split()[0].decode()
            hello = {"type": "hello", "nonce": nonce, "python": "3.12", "have_payload": True}
            self._said.insert(0, json.dumps(hello).encode() + b"\n")

    def close_stdin(self) -> None:
        return

    def read(self, size: int, timeout: float | None) -> bytes:
        if not self._said:
            return b""
        chunk, rest = self._said[0][:size], self._said[0][size:]
        self._said[:1] = [rest] if rest else []
        return chunk

    def wait(self, timeout: float) -> int:
        return 0

    def close(self) -> None:
        return


class Scripted(Backend):
    """Every call meets the same answer."""

    def __init__(self, *said: bytes) -> None:
        super().__init__(Host(name="h"))
        self._said = said

    def open(self, argv: list[str]) -> Process:
        return Script(list(self._said))

    def close(self) -> None:
        return


def ask(*said: bytes, result: type[Message] = RunStatus) -> Any:
    """The answer as a task gets it; every item is taken for a batch of ledger rows."""
    return Scripted(*said).call("status", RunRequest(), result, on_item=read_rows)


def read_rows(value: dict[str, Any]) -> None:
    ShardBatch.model_validate(value)


def line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"


@examples(75)
@given(st.lists(st.binary(max_size=200), max_size=5))
def test_bytes_of_any_kind_end_as_a_sentence(said: list[bytes]) -> None:
    with pytest.raises(RoostError) as caught:
        ask(*said)
    assert caught.value.message.isprintable()


@examples(75)
@given(st.sampled_from(["item", "result", "error", "progress", "beat", "hello", "x"]), json_objects())
def test_json_of_any_shape_ends_as_a_sentence(kind: str, values: dict[str, Any]) -> None:
    with pytest.raises(RoostError):
        ask(line({**values, "value": values, "type": kind}))


@pytest.mark.parametrize("result", RESULTS, ids=lambda model: model.__name__)
@examples(60)
@given(st.data())
def test_a_result_of_another_type_is_a_protocol_error(result: type[Message], data: st.DataObject) -> None:
    value = data.draw(objects_like(result))
    with contextlib.suppress(ProtocolError):
        assert isinstance(ask(line({"type": "result", "value": value}), result=result), result)


@examples(50)
@given(objects_like(ShardBatch))
def test_an_item_that_its_reader_refuses_is_the_host_s_fault(value: dict[str, Any]) -> None:
    with pytest.raises((ProtocolError, ConnectionLostError)):
        ask(line({"type": "item", "value": value}))


@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_a_number_of_more_than_64_bits_is_refused(digits: int) -> None:
    value = b'{"type": "item", "value": {"rows": [], "cursor": ' + b"9" * digits + b"}}\n"
    with pytest.raises(ProtocolError):
        ask(value)


@pytest.mark.parametrize("kind", ["item", "result"])
def test_deeply_nested_json_is_refused(kind: str) -> None:
    depth = 200_000
    said = b'{"type": "%s", "value": {"a": ' % kind.encode() + b"[" * depth + b"]" * depth + b"}}\n"
    with pytest.raises(ProtocolError):
        ask(said)


def test_a_line_of_millions_of_values_is_refused_before_it_is_built() -> None:
    said = b'{"type": "item", "value": {"a": [' + b"[]," * 5_000_000 + b"[]]}}\n"
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="values"):
            ask(said)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(said)
    finally:
        tracemalloc.stop()


def test_a_line_of_a_million_keys_is_refused_before_it_is_built() -> None:
    said = b'{"type": "item", "value": {' + b",".join(b'"%d":1' % number for number in range(1_000_000)) + b"}}\n"
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="keys"):
            ask(said)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(said)
    finally:
        tracemalloc.stop()


def test_an_endless_sentence_is_cut() -> None:
    with pytest.raises(RoostError) as caught:
        ask(line({"type": "error", "kind": "host", "message": "x" * 1_000_000, "remedy": "y" * 1_000_000}))
    assert len(caught.value.message) == len(caught.value.remedy) == LONGEST_MESSAGE


class Leaving(Script):
    """A host that says something and is gone before it has read everything."""

    def __init__(self, said: list[bytes], reads: int) -> None:
        super().__init__(said)
        self._reads = reads

    def write(self, data: bytes) -> None:
        if self._reads == 0:
            raise BrokenPipeError
        self._reads -= 1
        super().write(data)


def test_the_error_of_a_host_that_ends_during_a_write_is_still_read() -> None:
    refusal = {"type": "error", "kind": "workdir", "message": "That folder is others' too.", "remedy": "Take another."}
    conversation = Conversation(Leaving([json.dumps(refusal).encode() + b"\n"], reads=1), 5.0)
    assert conversation.ask(current_payload(), workdir="/w", verb="hello")
    with pytest.raises(HostError, match=r"That folder is others' too\.") as raised:
        conversation.send(Call(verb="hello", workdir="/w"))
    assert raised.value.remedy == "Take another."


def test_the_output_of_a_session_that_ended_early_is_shown() -> None:
    conversation = Conversation(Leaving([b"only backups here\n"], reads=0), 5.0)
    with pytest.raises(ProtocolError, match=r"the session printed: .*only backups here"):
        conversation.ask(current_payload(), workdir="/w", verb="hello")


def test_a_host_that_stops_reading_and_floods_is_disconnected() -> None:
    conversation = Conversation(Leaving([b"x" * 99 + b"\n"] * 20_000, reads=0), None)
    with pytest.raises(ProtocolError, match="stopped reading the request but went on sending"):
        conversation.ask(current_payload(), workdir="/w", verb="hello")
