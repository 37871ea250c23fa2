"""Reads from a server how many requests it runs at once, and whether the same seed gives the same answer."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from remote.work.client import Client

SPARE = 8
"""For this many running conversations, one more waits on the server, so that its batch stays full."""
_DEFAULT_PLACES = 64


class ServerFacts(BaseModel):
    """The facts of one start of a server; 0 is unknown."""

    running_requests: int = 0
    tokens_at_once: int = 0
    context_length: int = 0
    deterministic: bool = False
    """Whether the server was started with `--enable-deterministic-inference`."""

    @property
    def places(self) -> int:
        """Return how many conversations the server should have at once."""
        most = self.running_requests or _DEFAULT_PLACES
        return most + max(1, most // SPARE)


async def ask_facts(client: Client) -> ServerFacts:
    """Ask the server. Facts that its SGLang does not report stay unknown. Raises ServerGoneError or AttemptError."""
    told: dict[str, Any] = await client.facts()
    states = told.get("internal_states")
    inside = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}

    def number(*names: str) -> int:
        found = (place.get(name) for name in names for place in (inside, told))
        return next((one for one in found if type(one) is int and one > 0), 0)

    return ServerFacts(
        running_requests=number("effective_max_running_requests_per_dp", "max_running_requests"),
        tokens_at_once=number("max_total_num_tokens"),
        context_length=number("context_length", "context_len"),
        deterministic=told.get("enable_deterministic_inference") is True,
    )
