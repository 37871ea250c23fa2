"""`address` as people write it: `host`, `user@host`, `host:2222`, `ssh://user@host:2222`, `[::1]:2222`."""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import PydanticCustomError

CONTRADICTION = "contradiction"
"""The type of a validation error whose context names the wrong key."""

_FORM = re.compile(r"(?:(?P<user>[^@]*)@)?(?:\[(?P<six>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d+))?")


def split_address(data: Any) -> Any:
    """Return a host's raw settings with the user and port of its `address` in their own keys.

    Raises a PydanticCustomError of type CONTRADICTION if those keys have other values.
    """
    if not isinstance(data, dict) or not isinstance(data.get("address"), str):
        return data
    written = data["address"]
    found = _FORM.fullmatch(re.sub(r"^ssh://([^/]*)/?$", r"\1", written))
    if found is None:  # for example an IPv6 address without brackets, which has no user or port
        return data
    parts = {"user": found["user"] or None, "ssh_port": int(found["port"]) if found["port"] else None}
    for key, value in parts.items():
        if value is not None and data.get(key) not in (None, value):
            raise PydanticCustomError(
                CONTRADICTION,
                "address {address} and {key}: {other} contradict each other; give the {key} in only one of them",
                {"address": repr(written), "key": key, "other": repr(data[key])},
            )
    given = {key: value for key, value in parts.items() if value is not None}
    return {**data, **given, "address": found["six"] or found["name"]}
