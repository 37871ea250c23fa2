"""A run's identity for tests that need one."""

from __future__ import annotations

from typing import Any

from remote.shared.messages.run import RunIdentity


def run_identity(**fields: Any) -> RunIdentity:
    """A small run named `trial`, with `fields` laid over it."""
    values: dict[str, Any] = {
        "name": "trial",
        "nonce": "0123456789abcdef",
        "dataset": "d",
        "tokenizer": "t",
        "model": "m",
        "model_path": "/models/m",
        "boundaries": (1, 3, 6),
        "final": "pre",
        "hidden_size": 8,
        "dtype": "BF16",
    }
    return RunIdentity(**{**values, **fields})
