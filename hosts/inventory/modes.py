"""The differences between two modes of a host, each with the inventory's reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from hosts.inventory.model import FlagValue, Host, Mode
from hosts.inventory.servers import find_mode
from remote.shared.redact import shown, without_credentials

CAPTURE_WHY = "hidden states are captured; Roost adds the flags that capture needs for the installed SGLang"
NOT_SET = "-"
RESTART_WHY = "a crashed server is started again, with capped backoff"


class Difference(BaseModel):
    """One setting with different values in two modes."""

    setting: str
    """`--flag`, `$VARIABLE`, `capture` or `restart`."""
    first: str
    """The value in the first mode; `-` if the first mode does not set it."""
    second: str
    why: str
    """The mode's `why:` for this setting; empty if it has none."""


def diff_modes(host: Host, first: str, second: str) -> list[Difference]:
    """Return the differences between two modes of `host`; raises UsageError for an unknown mode."""
    one, two = find_mode(host, first), find_mode(host, second)
    why = {**one.why, **two.why}
    own = [
        _difference("capture", one.capture, two.capture, CAPTURE_WHY),
        _difference("restart", one.restart, two.restart, RESTART_WHY),
    ]
    flags = _differences("--", _flags(one), _flags(two), why)
    env = _differences("$", one.env, two.env, why)
    found = [difference for difference in (*own, *flags, *env) if difference.first != difference.second]
    return [_seen(difference, host.secrets) for difference in found]


def _seen(difference: Difference, secrets: Sequence[str]) -> Difference:
    """Return the difference without secrets: only that two secrets differ."""
    name = difference.setting

    def seen(value: str) -> str:
        if value == NOT_SET or not name.startswith("$"):
            return without_credentials(value)
        return shown(name[1:], value, secrets)

    return difference.model_copy(update={"first": seen(difference.first), "second": seen(difference.second)})


def _differences(
    sign: str, one: Mapping[str, FlagValue], two: Mapping[str, FlagValue], why: dict[str, str]
) -> list[Difference]:
    names = {**one, **two}
    return [_difference(f"{sign}{name}", one.get(name), two.get(name), why.get(name, "")) for name in names]


def _flags(mode: Mode) -> dict[str, FlagValue]:
    """Return the flags in one spelling, without those that are false."""
    return {name.lstrip("-").replace("_", "-"): value for name, value in mode.flags.items() if value is not False}


def _difference(setting: str, first: FlagValue | None, second: FlagValue | None, why: str) -> Difference:
    return Difference(setting=setting, first=_shown(first), second=_shown(second), why=why)


def _shown(value: FlagValue | None) -> str:
    if value is None or value is False:
        return NOT_SET
    return "set" if value is True else str(value)
