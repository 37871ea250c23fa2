"""Ray's job server and state, over plain HTTP from the login host, which needs no Ray of the cluster's version."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.shared.errors import HostError, UsageError

SECONDS = 20.0
OLDEST = (2, 9)
"""The first version whose job server and state API answer in the form that is read here."""
LIVE = ("PENDING", "RUNNING")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a cluster is not reached through a proxy


@dataclass(frozen=True)
class Server:
    """The job server of one cluster."""

    address: str

    def version(self) -> str:
        """Return the cluster's version of Ray; raise UsageError if there is no cluster, or its version is too old."""
        try:
            told = self._ask("GET", "/api/version")
        except HostError as error:
            raise UsageError(error.message, remedy=error.remedy) from error
        version = str(told.get("ray_version", ""))
        if not _is_known(version):
            raise UsageError(
                f"The cluster at {self.address} runs Ray {version or 'of no known version'}, but Roost needs "
                f"{OLDEST[0]}.{OLDEST[1]} or a later 2.x.",
                remedy="Use a cluster with a newer Ray; the login host itself needs no Ray.",
            )
        return version

    def is_open(self) -> bool:
        """Return whether the job server answers without a token."""
        request = urllib.request.Request(self.address + "/api/jobs/")  # noqa: S310
        try:
            with _DIRECT.open(request, timeout=SECONDS):
                return True
        except OSError:
            return False

    def submit(self, submission: dict[str, Any]) -> str:
        """Submit a job and return its id."""
        return str(self._ask("POST", "/api/jobs/", submission)["submission_id"])

    def job(self, job: str) -> dict[str, Any]:
        """Return the server's facts about a job; empty if the server knows no job with this id."""
        return self._ask("GET", f"/api/jobs/{urllib.parse.quote(job)}", missing={})

    def log(self, job: str) -> str:
        """Return a job's output."""
        return str(self._ask("GET", f"/api/jobs/{urllib.parse.quote(job)}/logs", missing={}).get("logs", ""))

    def actors(self, namespace: str) -> dict[str, dict[str, Any]]:
        """Return the living actors of a namespace, by name."""
        found = self._state("actors", "ray_namespace", namespace)
        return {str(one["name"]): one for one in found if one.get("state") != "DEAD" and one.get("name")}

    def groups(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return the placement groups whose names begin with `prefix`, by the rest of their names."""
        found = [one for one in self._state("placement_groups") if one.get("state") != "REMOVED"]
        named = [one for one in found if str(one.get("name", "")).startswith(prefix)]
        return {str(one["name"]).removeprefix(prefix): one for one in named}

    def _state(self, kind: str, key: str = "", value: str = "") -> list[dict[str, Any]]:
        only = {"filter_keys": key, "filter_predicates": "=", "filter_values": value} if key else {}
        query = urllib.parse.urlencode({"detail": "1", "limit": "10000", **only})
        told = self._ask("GET", f"/api/v0/{kind}?{query}")
        try:
            return list(told["data"]["result"]["result"])
        except (KeyError, TypeError) as error:
            raise HostError(f"Ray at {self.address} lists no {kind}: {str(told.get('msg', told))[:300]}.") from error

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, missing: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the server's answer, or `missing` if the server does not know the path."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **_authorization()}
        request = urllib.request.Request(self.address + path, data, headers, method=method)  # noqa: S310
        try:
            with _DIRECT.open(request, timeout=SECONDS) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404 and missing is not None:
                return missing
            raise self._refusal(error) from error
        except (OSError, ValueError) as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            raise HostError(
                f"No Ray job server answers at {self.address}: {why or type(error).__name__}.",
                remedy="Check that the cluster is up (`ray status` on the head node), and that this is the address of "
                "its dashboard as this host reaches it.",
            ) from error
        if not isinstance(told, dict):
            raise HostError(f"The server at {self.address} answers, but it is no Ray job server.")
        return told

    def _refusal(self, error: urllib.error.HTTPError) -> HostError:
        if error.code in (401, 403):
            return UsageTokenError(self.address)
        said = error.read(2000).decode(errors="replace").strip()
        return HostError(f"Ray's job server at {self.address} answered {error.code}: {said[-500:]}.")


class UsageTokenError(HostError):
    """The cluster requires a token that this host does not have."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"Ray's job server at {address} requires a token, and this host has none or a wrong one.",
            remedy="Put the cluster's token into ~/.ray/auth_token on the login host, mode 0600.",
        )


def _authorization() -> dict[str, str]:
    """Return the HTTP header with Ray's own token, for a cluster that was started with RAY_AUTH_MODE=token."""
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    kept = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if not token and kept.is_file():
        token = kept.read_text().strip()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _is_known(version: str) -> bool:
    parts = version.split(".")[:2]
    if not all(part.isdecimal() for part in parts) or len(parts) < 2:
        return False
    return OLDEST <= (int(parts[0]), int(parts[1])) < (3, 0)
