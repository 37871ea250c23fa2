"""Secrets in a server's environment are shown nowhere and written nowhere. Runs on the host, pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from remote.shared.messages.server import ServerSpec

HIDDEN = "***"
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_AUTH|(^|_)KEY$", re.IGNORECASE)
_HARMLESS = re.compile(r"TOKENIZERS?_|MAX_?.*TOKENS|NUM_?.*TOKENS", re.IGNORECASE)


def is_secret(name: str, named: Collection[str] = ()) -> bool:
    """Whether a variable's value is to be hidden: the operator named it, or its name says so."""
    return name in named or (bool(_SECRET.search(name)) and not _HARMLESS.search(name))


def redacted(env: Mapping[str, str], named: Collection[str] = ()) -> dict[str, str]:
    """`env` with the values of secrets replaced by `***`."""
    return {name: HIDDEN if is_secret(name, named) else value for name, value in env.items()}


def redacted_spec(spec: ServerSpec) -> ServerSpec:
    """The spec as it may be written to `state.json`."""
    return spec.model_copy(update={"env": redacted(spec.env, spec.secrets)})
