"""Replaces secrets by `***` in environments, addresses, errors and log lines; no other module does.

Shared by both sides; pure functions. Every module that prints or stores a setting, an address or a server's output uses
them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from remote.shared.messages.server import ServerSpec

HIDDEN = "***"
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_AUTH|_(PWD|PASS|PAT|DSN)$|(^|_)KEY$",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"TOKENIZERS?_|MAX_?.*TOKENS|NUM_?.*TOKENS|^(OLD)?PWD$", re.IGNORECASE)
_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s?#'\"@]*(?:@[^/\s?#'\"@]*)*@")
_PARAMETER = re.compile(
    r"(?P<name>[?&;](?:[A-Za-z0-9_.-]*(?:token|secret|passw|key|sig|signature|credential|auth)[A-Za-z0-9_.-]*)=)[^&;#\s'\"]+",
    re.IGNORECASE,
)
_WEB_PATH = re.compile(r"(https?://[^/\s?#]+)[/?#]\S*")
"""The path of a webhook is its secret."""
_API_KEY = re.compile(r"""(?P<name>api[_-]key['"]?\s*[=:]\s*)(?P<quote>['"])[^'"]*(?P=quote)""", re.IGNORECASE)


def is_secret(name: str, named: Collection[str] = ()) -> bool:
    """Return whether the value of a variable or setting is a secret, by its name or by the operator's list `named`."""
    return name in named or (bool(_SECRET.search(name)) and not _HARMLESS.search(name))


def redacted(env: Mapping[str, str], named: Collection[str] = ()) -> dict[str, str]:
    """Return `env` with the values of secrets, and credentials in addresses, replaced by `***`."""
    return {name: shown(name, value, named) for name, value in env.items()}


def shown(name: str, value: str, named: Collection[str] = ()) -> str:
    """Return the value as it may be shown: `***` if it is a secret, else without credentials in addresses."""
    return HIDDEN if is_secret(name, named) else without_credentials(value)


def without_credentials(text: str) -> str:
    """Return `text` with user, password and signed parameters of every URL replaced by `***`."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(rf"\g<name>{HIDDEN}", _USER_INFO.sub(rf"\g<scheme>{HIDDEN}@", text))


def harmless_words(words: Sequence[str]) -> list[str]:
    """Return a command line without the values of options that name a secret, and without secrets in addresses."""
    shown, hides = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = word.startswith("--") and is_secret(name.lstrip("-").replace("-", "_"))
        if hides and not word.startswith("--"):
            shown.append(HIDDEN)
        elif secret and equals:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(_WEB_PATH.sub(rf"\1/{HIDDEN}", without_credentials(word)))
        hides = secret and not equals
    return shown


def log_line(line: str) -> str:
    """Return a line of a server's log with the API keys among SGLang's printed arguments replaced by `***`."""
    if "api" not in line and "API" not in line:
        return line
    return _API_KEY.sub(rf"\g<name>\g<quote>{HIDDEN}\g<quote>", line)


def redacted_spec(spec: ServerSpec) -> ServerSpec:
    """Return the spec without secrets, for `state.json`."""
    return spec.model_copy(update={"env": redacted(spec.env, spec.secrets)})
