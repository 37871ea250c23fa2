"""The answerer: a dispatcher whose records are conversations.

Runs on the host inside the dispatcher's event loop. A conversation stays on one server, because that server's radix
cache has its beginning. Servers are kept full to the end: the longest conversations start first, and each server gets a
few more conversations than it runs at once.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import xxhash

from remote.answer.conversation import Conversation
from remote.answer.serverfacts import ServerFacts, ask_facts
from remote.answer.speaker import Prompt, Speaker
from remote.answer.store import store
from remote.answer.understand import sampled_of, sampling_params
from remote.data.asking import Script
from remote.report import Report
from remote.shared.errors import HostError
from remote.shared.messages.answers import least_answer, longest_prompt
from remote.shared.messages.extract import longest_record
from remote.shared.paths import CONVERSATIONS_FILE, RunPaths, Workdir
from remote.shared.supervised.pools import Pool
from remote.work.assignment import Work
from remote.work.backlog import Task
from remote.work.client import Client
from remote.work.dispatcher import Dispatcher
from remote.work.endpoint import Endpoint
from remote.work.failures import ServerGoneError
from remote.work.holding import Holding
from remote.work.ledger import Ledger, Row
from remote.work.session import Opened

WORKERS = 2
"""Number of threads that decode, judge and write finished conversations."""
YIELD_SECONDS, YIELD_POLL_SECONDS = 0.25, 0.002
SWITCH_SECONDS = 0.0005
"""Seconds for which a thread may keep the interpreter from the event loop; Python's default is ten times as long."""
BYTES_A_TOKEN = 16
"""Bytes of a record's file for each token: id, mask, text and logprob."""


class Answerer(Dispatcher):
    """One session of answering."""

    mode = "serve"

    observe_seconds = 0.05
    takes_all = True
    """All conversations of the host are begun in order of their length, the longest first."""

    def __init__(self, workdir: Workdir, paths: RunPaths, holding: Holding, opened: Opened, report: Report) -> None:
        work = holding.work
        self._expected = np.zeros(len(work), np.int32) if work.expected is None else work.expected
        super().__init__(workdir, paths, holding, opened, report)
        assert self._assignment.identity.answers is not None
        self._settings = self._assignment.identity.answers
        self._scripts = _scripts(paths, work)
        self._speaker: Speaker | None = None
        self._open: dict[int, Conversation] = {}
        """Conversations that are in flight, or whose last attempt failed, by position."""
        self._facts: dict[str, ServerFacts] = {}
        self._asking: dict[str, int] = {}
        """The conversations that have a place on each server."""
        self._taken: dict[Task, int] = {}
        self._pool = Pool(WORKERS, "answers")

    @classmethod
    def refusals(cls, work: Work) -> list[tuple[int, str]]:
        """Yield the prompts that no server can take: with ids outside the vocabulary, without ids, or too long."""
        found = dict(work.strange_tokens())
        context, settings = work.assignment.context_length, work.assignment.identity.answers
        assert settings is not None
        lengths, most = work.lengths(), longest_prompt(context, settings)
        for position in np.flatnonzero((lengths == 0) | (lengths > most)).tolist():
            long = (
                f"Its prompt has {lengths[position]} tokens, but a context of {context} with an answer of "
                f"{least_answer(settings)} has room for {most}."
            )
            found[position] = long if lengths[position] else "Its prompt has no tokens."
        return list(found.items())

    def tokens(self, position: int) -> int:
        return int(self._expected[position])

    def size_bytes(self, position: int) -> int:
        return self.tokens(position) * BYTES_A_TOKEN

    def ordered(self, positions: list[int]) -> list[int]:
        """Return the longest conversations first, so that at the end no server waits for a long conversation."""
        return sorted(positions, key=lambda position: (-int(self._expected[position]), position))

    async def begin(self) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)

    async def accept(self, endpoint: Endpoint, client: Client) -> None:
        """Accept a server that does not capture and serves the model for which the prompts were rendered."""
        state = endpoint.state
        if state.capture is not None:
            raise HostError(
                f"The server {endpoint.name!r} captures hidden states (mode {state.mode!r}), so it has no radix cache "
                f"and cannot be used for answers.",
                remedy=f"Start it without capture: `inv restart --host {self._assignment.host} --mode serve`.",
            )
        if self._speaker is None:
            loop, model = asyncio.get_running_loop(), Path(state.model).expanduser()
            identity = self._assignment.identity
            carried = self._paths.tokenizer
            self._speaker = await loop.run_in_executor(self._pool, Speaker.load, model, identity, carried)
        facts = await ask_facts(client)
        if facts.context_length and facts.context_length < self._assignment.context_length:
            raise HostError(
                f"The server {endpoint.name!r} takes {facts.context_length:,} tokens, but the run was planned for "
                f"{self._assignment.context_length:,}.",
                remedy="Serve with the `context_length` that the run was planned with.",
            )
        self._facts[endpoint.name] = facts
        endpoint.tokens.limit = facts.tokens_at_once or self._assignment.in_flight_tokens
        with Ledger(self._paths.ledger) as ledger:
            ledger.note({f"server {endpoint.name}": facts.model_dump_json()})

    def with_room(self, ready: list[Endpoint], task: Task) -> list[Endpoint]:
        return [endpoint for endpoint in ready if self._asking.get(endpoint.name, 0) < self._places(endpoint.name)]

    def begun(self, task: Task, endpoint: Endpoint) -> None:
        self._asking[endpoint.name] = self._asking.get(endpoint.name, 0) + 1
        self._taken[task] = self.tokens(task.position)

    def ended(self, task: Task, endpoint: Endpoint) -> None:
        self._let_go(task, endpoint)

    async def attempt(self, task: Task, endpoint: Endpoint) -> Row:
        index = int(self._work.index[task.position])
        conversation = self._conversation(task.position)
        life, client = endpoint.life, endpoint.client
        assert client is not None

        async def ask(number: int, prompt: Prompt) -> object:
            if not endpoint.ready or endpoint.life != life:
                raise ServerGoneError("The server was restarted between two turns.")
            return await self._ask(client, task, number, prompt)

        try:
            await conversation.hold(ask)  # type: ignore[arg-type]
        finally:
            self._let_go(task, endpoint)  # the next conversation gets its place while it is written
        await self._after_sending()
        path = self._paths.shard(index)
        writer = self.disk_writer(self._pool)
        identity = self._assignment.identity
        stored = await writer.write(index, self.size_bytes(task.position), store, path, conversation, identity)
        row = Row(
            index=index,
            state="done",
            rows=stored.rows,
            epoch=self._assignment.epoch,
            size_bytes=stored.size_bytes,
            xxh3=stored.xxh3,
            flag=" ".join(stored.summary.marks),
            attempts=task.attempt,
            told=stored.summary.model_dump_json(),
        )
        await self._committer.commit(row)
        self._open.pop(task.position, None)
        return row

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    async def _ask(self, client: Client, task: Task, number: int, prompt: Prompt) -> object:
        index = int(self._work.index[task.position])
        room = longest_record(self._assignment.context_length) - len(prompt.ids)
        seed = xxhash.xxh3_64_intdigest(f"{self._settings.seed}.{index}.{number}".encode()) & 0x7FFFFFFF
        rid = f"answer.{self._opened.nonce}.{index}.{number}.{task.attempt}"
        sampling = sampling_params(self._settings, min(self._settings.max_tokens, room), seed)
        more = {"return_logprob": True} if self._settings.logprobs else {}
        answer = await client.generate(rid, prompt.ids, sampling, more)
        return sampled_of(answer, sampling, self._settings, seed)

    def _conversation(self, position: int) -> Conversation:
        if position not in self._open:
            assert self._speaker is not None
            most = longest_prompt(self._assignment.context_length, self._settings)
            script = Script.of_json(self._scripts[position])
            self._open[position] = Conversation(self._speaker, script, self._work.tokens(position), most)
        return self._open[position]

    def _let_go(self, task: Task, endpoint: Endpoint) -> None:
        """Give the place on the server back, if the conversation still has it."""
        taken = self._taken.pop(task, None)
        if taken is None:
            return
        endpoint.tokens.give(taken)
        self._asking[endpoint.name] -= 1
        self._changed.set()

    async def _after_sending(self) -> None:
        """Wait until free places are filled, because threads that write would delay the event loop that sends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + YIELD_SECONDS
        while len(self._backlog) and self._has_places() and loop.time() < deadline:
            await asyncio.sleep(YIELD_POLL_SECONDS)

    def _has_places(self) -> bool:
        """Return whether a server has room for another conversation."""
        names = [endpoint.name for endpoint in self._endpoints if endpoint.ready and endpoint.name in self._facts]
        return any(self._asking.get(name, 0) < self._places(name) for name in names)

    def _places(self, name: str) -> int:
        """Return how many conversations may be on a server at once."""
        return self._assignment.concurrency or self._facts[name].places


def _scripts(paths: RunPaths, work: Work) -> list[str]:
    path = paths.assignment(work.assignment.epoch) / CONVERSATIONS_FILE
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        lines = []
    if len(lines) != len(work):
        raise HostError(
            f"{path} has {len(lines)} conversations, but the share has {len(work)} prompts.",
            remedy="Pull the finished answers, and answer again as a run with another name.",
        )
    return lines
