"""A host that runs verbs: the class that `hosts/commands` uses for every host, over SSH or on the laptop itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from hosts import typed
from hosts.inventory.model import Host
from hosts.transport import bootstrap
from hosts.transport.call import Conversation, validated
from hosts.transport.payload import current_payload
from hosts.transport.process import Process
from hosts.transport.words import python_program
from remote.shared.messages.envelope import Call, Progress

R = TypeVar("R", bound=BaseModel)
OnProgress = Callable[[Progress], None]
OnItem = Callable[[dict[str, Any]], None]

DEFAULT_DEADLINE_SECONDS = 60.0


class Backend(ABC):
    """One host. Thread-safe: any number of calls can share its connection at once."""

    def __init__(self, host: Host) -> None:
        self.host = host

    @abstractmethod
    def open(self, argv: list[str]) -> Process:
        """Start a program on the host. Every argument arrives unchanged, whatever characters it contains.

        Raises HostUnreachableError, HostKeyError or AuthenticationError if the login fails.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection; running detached programs are not touched."""

    def call(
        self,
        verb: str,
        request: BaseModel,
        result: type[R],
        *,
        deadline: float | None = DEFAULT_DEADLINE_SECONDS,
        on_progress: OnProgress | None = None,
        on_item: OnItem | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> R:
        """Run one verb and return its result. If the host lacks the payload, the payload is sent first.

        `on_sent` is called if the payload had to be sent.

        `deadline` is in seconds for the whole call; None for a call that continues until it is closed (logs). Raises
        the verb's own RoostError, or ConnectionLostError, ProtocolError and `open`'s errors.
        """
        process = self.open(self.argv())
        try:
            conversation = Conversation(process, deadline)
            if conversation.begin(current_payload(), workdir=self.host.workdir, verb=verb) and on_sent is not None:
                on_sent()
            conversation.send(
                Call(
                    verb=verb,
                    request=request.model_dump(mode="json"),
                    workdir=self.host.workdir,
                    tethered=True,
                    operator=typed.operator(),
                    typed=typed.current(),
                )
            )
            return validated(result, conversation.result(on_progress, on_item))
        finally:
            process.close()

    def has_payload(self, deadline: float = DEFAULT_DEADLINE_SECONDS) -> bool:
        """Return whether the host holds this payload undamaged. Changes nothing on the host."""
        process = self.open(self.argv())
        try:
            conversation = Conversation(process, deadline)
            return conversation.ask(current_payload(), workdir=self.host.workdir, verb="hello")
        finally:
            process.close()

    def argv(self) -> list[str]:
        """Return the command that starts the bootstrap on this host, with the host's `exec` prefix.

        Python runs isolated (`-I`) and without `site` (`-S`), so it imports nothing from the folder that the login
        starts in.
        """
        return python_program(self.host, BOOTSTRAP, "-I", "-S")


def _source() -> str:
    """Return the bootstrap's text, which is sent as an argument with every call."""
    from pathlib import Path

    return Path(bootstrap.__file__).read_text(encoding="ascii")


BOOTSTRAP = _source()
